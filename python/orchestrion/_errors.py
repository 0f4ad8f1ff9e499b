"""The package's exceptions. Each has the exit code that the command `orchestrion` ends with for the same cause."""


class Error(Exception):
    """Any error of Orchestrion."""

    exit_code: int = 1
    """What the command `orchestrion` ends with for the same cause."""


class ModelError(Error):
    """The model or its data is wrong; the message lists every problem with its place."""


class InputError(Error, ValueError):
    """A tensor does not fit the input or output that it is given for."""


class FileError(Error, OSError):
    """A file cannot be read or written."""


class UsageError(Error, ValueError):
    """A call does not fit its function: an unknown option, a missing or surplus tensor."""

    exit_code = 2


class Unsupported(Error):
    """The model is valid, but needs what is not supported; the message lists every such place."""

    exit_code = 3


class MachineError(Error):
    """The machine lacks something that is needed: a C compiler, memory, instructions, a GPU."""

    exit_code = 4


class InternalError(Error):
    """A bug in Orchestrion."""

    exit_code = 70
