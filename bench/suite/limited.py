"""Commands with limits of time and memory."""
from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

#: How often a command is looked after.
POLL_S = 0.05


@dataclass
class Outcome:
    """How a command ended."""

    exit_code: int
    timed_out: bool
    seconds: float
    peak_mib: int
    stdout: str
    stderr: str


def run(command: list, limit_s: float, limit_mib: int) -> Outcome:
    """Runs a command in a session of its own, which is killed when its time is over. Beyond the limit of memory its allocations fail."""
    bytes_ = limit_mib << 20
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (bytes_, bytes_))  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("stdout", "stderr")]
        with paths[0].open("wb") as stdout, paths[1].open("wb") as stderr:
            start = time.monotonic()
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                       preexec_fn=limit, start_new_session=True)
            status, usage, timed_out = _wait(process.pid, start + limit_s)
            process.returncode = os.waitstatus_to_exitcode(status)
        texts = [path.read_text(errors="replace") for path in paths]
    return Outcome(process.returncode, timed_out, time.monotonic() - start, usage.ru_maxrss >> 10, *texts)


def _wait(pid: int, deadline: float):
    """The status and usage of a process, and whether it had to be killed."""
    timed_out = False
    try:
        while True:
            found, status, usage = os.wait4(pid, os.WNOHANG)
            if found:
                return status, usage, timed_out
            if time.monotonic() > deadline and not timed_out:
                os.killpg(pid, signal.SIGKILL)
                timed_out = True
            time.sleep(POLL_S)
    except BaseException:
        os.killpg(pid, signal.SIGKILL)
        raise
