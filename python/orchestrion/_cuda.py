"""Where CUDA's libraries are."""

from __future__ import annotations

import os
import sys


def cuda_files() -> dict[str, list[str]]:
    """CUDA's libraries that the environment names, as the command does, whether there is a profiler, and folders in which NVIDIA's packages may be."""
    variables = {
        "driver": "ORCHESTRION_CUDA_DRIVER",
        "nvrtc": "ORCHESTRION_NVRTC",
        "cublaslt": "ORCHESTRION_CUBLASLT",
        "cudnn": "ORCHESTRION_CUDNN",
    }
    has_profiler = os.environ.get("NVTX_INJECTION64_PATH", "") != ""
    nvtx = os.environ.get("ORCHESTRION_NVTX", "1" if has_profiler else "0")
    named = {name: [os.environ[variable]] for name, variable in variables.items() if os.environ.get(variable)}
    return {**named, "nvtx": [nvtx], "site_packages": [path for path in sys.path if path.endswith("-packages")]}
