"""The Orchestrion binary: one process for each model."""

import math
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field

import numpy as np

# Address space of the program. A model that needs more is the program's matter to refuse.
MOST_MEMORY_BYTES = 12 << 30

# A process that waits instead of computing is ended after so many times its limit of CPU time.
WALL_FACTOR = 6

# CPU features that a target needs; others (GPUs) are taken to be there.
FEATURES = {
    "x86-64-v3": {"avx2", "fma", "f16c"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
    "x86-64-v4-bf16": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_bf16"},
    "x86-64-amx": {"avx512f", "amx_bf16", "amx_tile"},
    "aarch64": {"asimd"},
}


def runs_here(target):
    """Whether this machine can run what is compiled for a target; otherwise it is compiled only."""
    words = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    return FEATURES.get(target, set()) <= words


@dataclass
class Ended:
    """How a run ended: exit code (negative for a signal, None for the time limit), last words, outputs by name."""

    code: int | None
    error: str
    outputs: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """How to call the binary."""

    binary: str
    target: str
    cache: pathlib.Path
    time_limit: float
    cc: str | None = None
    compile_only: bool = False

    def run(self, model_bytes, inputs):
        """Compiles and runs a model on inputs by name, or only compiles it."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="fuzz-", dir=self.cache))
        try:
            model = folder / "model.onnx"
            model.write_bytes(model_bytes)
            command = [
                self.binary,
                "compile" if self.compile_only else "run",
                str(model),
                "--quiet",
                "--no-calibration",
                "--cache-dir",
                str(self.cache / "kernels"),
                "--target",
                self.target,
                "--jobs",
                "1",
            ]
            if self.cc:
                command += ["--cc", self.cc]
            if self.compile_only:
                command += ["--output", str(folder / "model.orc")]
            else:
                command += ["--threads", "2", "--output-dir", str(folder / "out")]
                for number, (name, array) in enumerate(inputs.items()):
                    np.save(folder / f"input_{number}.npy", array)
                    command += ["--input", f"{name}={folder / f'input_{number}.npy'}"]
            code, error = self._ended(command)
            outputs = (
                {f.name.removesuffix(".npy"): np.load(f) for f in (folder / "out").glob("*.npy")} if code == 0 else {}
            )
            return Ended(code, error, outputs)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ended(self, command):
        """The exit code, None if it took too long, and standard error. Time is CPU time: other work may slow the machine."""

        def limit():
            seconds = math.ceil(self.time_limit)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))

        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=limit,
        )
        try:
            _, error = process.communicate(timeout=WALL_FACTOR * self.time_limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        if process.returncode in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
            return None, ""
        return process.returncode, error.decode(errors="replace")
