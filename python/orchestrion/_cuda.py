"""Where CUDA's libraries are."""

from __future__ import annotations

import os
import sys


def cuda_files() -> dict[str, list[str]]:
    """CUDA's libraries that the environment names, as the command does, what it says of marks for profilers, and folders in which NVIDIA's packages may be."""
    variables = {
        "driver": "ORCHESTRION_CUDA_DRIVER",
        "nvrtc": "ORCHESTRION_NVRTC",
        "cublaslt": "ORCHESTRION_CUBLASLT",
        "cudnn": "ORCHESTRION_CUDNN",
    }
    named = {name: [os.environ[variable]] for name, variable in variables.items() if os.environ.get(variable)}
    # Whether they are empty matters.
    marks = {"nvtx": "ORCHESTRION_NVTX", "nvtx_injection": "NVTX_INJECTION64_PATH"}
    named |= {name: [os.environ[variable]] for name, variable in marks.items() if variable in os.environ}
    return {**named, "site_packages": [path for path in sys.path if path.endswith("-packages")]}
