"""Orchestrion: a compiler of tensor programs to the fastest executables that it can check.

>>> import orchestrion as orc
>>> exe = orc.compile("model.onnx")           # doctest: +SKIP
>>> y = exe(x)                                # doctest: +SKIP

Tensors of NumPy, PyTorch and other libraries with DLPack are taken where they lie; results are of the inputs' library.
"""

from orchestrion._compile import DynamicExecutable, compile, load
from orchestrion._errors import (
    Error,
    FileError,
    InputError,
    InternalError,
    MachineError,
    ModelError,
    Unsupported,
    UsageError,
)
from orchestrion._executable import Context, Executable, OutputCheck, Report, Tensor, Timing, Verification
from orchestrion._native import __version__
from orchestrion._session import InferenceSession, NodeArg, SessionOptions
from orchestrion._superoptimize import Certificate, Superoptimized, Times, superoptimize

__all__ = [
    "Certificate",
    "Context",
    "DynamicExecutable",
    "Error",
    "Executable",
    "FileError",
    "InferenceSession",
    "InputError",
    "InternalError",
    "MachineError",
    "ModelError",
    "NodeArg",
    "OutputCheck",
    "Report",
    "SessionOptions",
    "Superoptimized",
    "Tensor",
    "Times",
    "Timing",
    "Unsupported",
    "UsageError",
    "Verification",
    "__version__",
    "compile",
    "load",
    "superoptimize",
]
