"""Tensors in a GPU's memory, by a driver without a device, whose memory is the host's and whose kernels of models do nothing."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import model, value
from onnx import helper

#: Of the repository: the stand-ins for the driver and NVRTC. Tests run from a copy, too.
SOURCES = "crates/orch-runtime/tests/fake_cuda"

CUDA, CPU = 2, 1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("ordinal", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        ("owner", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
    ]


class OnGpu:
    """An array as a tensor of some library on a GPU."""

    def __init__(self, array: np.ndarray, ordinal: int = 0) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = [stride // array.itemsize for stride in array.strides]
        self.strides = (ctypes.c_int64 * array.ndim)(*strides)
        self.tensor = _Tensor(
            array.ctypes.data, CUDA, ordinal, array.ndim, 2 if array.dtype.kind == "f" else 6, 8 * array.itemsize, 1, self.shape, self.strides, 0, None, None
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.tensor.ordinal

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def _stand_ins(folder: pathlib.Path) -> dict[str, str]:
    """The stand-ins, compiled, as environment variables name them."""
    here = pathlib.Path(__file__).resolve()
    root = next((parent for parent in here.parents if (parent / SOURCES).is_dir()), None)
    assert root is not None, "the repository has the stand-ins"
    named = {"driver.c": "ORCHESTRION_CUDA_DRIVER", "nvrtc.c": "ORCHESTRION_NVRTC"}
    variables = {}
    for source, variable in named.items():
        library = folder / f"{source}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, root / SOURCES / source], check=True)
        variables[variable] = str(library)
    return variables


@pytest.fixture(scope="module")
def in_process_with_gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Runs a function of this file in a process whose GPU is the stand-in."""
    folder = tmp_path_factory.mktemp("gpu")
    folder.chmod(0o700)
    environment = {**os.environ, **_stand_ins(folder), "ORCHESTRION_CACHE": str(folder), "FAKE_CUDA": "set device_count 2"}

    def run(function: str) -> str:
        paths = [str(pathlib.Path(__file__).parent), *sys.path]
        code = f"import sys; sys.path[:0] = {paths!r}; import test_device; test_device.{function}()"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _passing(device: str = "cuda") -> Any:
    """`y = x`, which is a copy, and `z = exp(x)`, whose kernel the stand-in does not run."""
    import orchestrion as orc

    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Exp", ["x"], ["z"])]
    ports = [value(name, [3, 8]) for name in "xyz"]
    return orc.compile(model(nodes, ports[:1], ports[1:]), device=device, calibrate=False, progress=False)


def tensors_stay_where_they_are() -> None:
    executable = _passing()
    for context in (executable, executable.context()):
        for seed in range(3):
            x = np.random.default_rng(seed).uniform(-1, 1, (3, 8)).astype(np.float32)
            y, z = np.zeros_like(x), np.zeros_like(x)
            out = (OnGpu(y), OnGpu(z))
            assert context(OnGpu(x), out=out) is out
            assert (y == x).all()
    # Tensors of the host, too.
    x = np.ones((3, 8), dtype=np.float32)
    assert (executable(x)[0] == x).all()
    # The second GPU.
    y, z = np.zeros_like(x), np.zeros_like(x)
    _passing("cuda:1")(OnGpu(x, 1), out=(OnGpu(y, 1), OnGpu(z, 1)))
    assert (y == x).all()


def tensors_that_do_not_fit_are_refused() -> None:
    import orchestrion as orc

    executable = _passing()
    x = np.zeros((3, 8), dtype=np.float32)
    out = (OnGpu(x.copy()), OnGpu(x.copy()))

    def error(*tensors: Any, out: Any = out) -> str:
        with pytest.raises(orc.Error) as caught:
            executable(*tensors, out=out)
        return str(caught.value)

    assert "is on cuda:1, the executable on cuda:0" in error(OnGpu(x, 1))
    assert "`x` is f32[2, 8], the model was compiled for f32[3, 8]" in error(OnGpu(x[:2]))
    assert "`x` is f64[3, 8], the model was compiled for f32[3, 8]" in error(OnGpu(x.astype(np.float64)))
    assert "input `x` is not row-major" in error(OnGpu(np.asfortranarray(x)))
    assert "give it as `out`" in error(OnGpu(x), out=None)
    assert "output `y` is not on a GPU" in error(OnGpu(x), out=(x.copy(), x.copy()))
    on_cpu = orc.compile(model([helper.make_node("Exp", ["x"], ["y"])], [value("x", [3, 8])], [value("y", [3, 8])]), progress=False)
    with pytest.raises(orc.InputError, match="is on the GPU"):
        on_cpu(OnGpu(x))


def _as_if_torch_had_a_gpu() -> list[str]:
    """Gives PyTorch's allocator and stream to the stand-in's GPU; a list that calls of them are written to."""
    import torch

    calls: list[str] = []

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> OnGpu:
        size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        flat = np.full(size, 7, dtype=str(dtype).removeprefix("torch.").replace("bool", "uint8"))
        byte_strides = [stride * flat.itemsize for stride in strides]
        calls.append(f"empty {list(shape)} {list(strides)}")
        return OnGpu(np.lib.stride_tricks.as_strided(flat, shape, byte_strides))

    def assert_async(check: OnGpu, message: str) -> None:
        calls.append(f"assert {message}")

    torch._C._dynamo.guards._empty_strided_cuda = empty
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda ordinal: 0
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    torch._assert_async = assert_async
    return calls


def _unit(function: Callable[..., Any], *inputs: Any) -> Any:
    """A function of fake tensors as a compiled graph."""
    import torch
    from orchestrion.torch import _backend, _placement
    from orchestrion.torch._unit import Unit
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty_strided(shape, strides, device=device, dtype=dtype) for shape, strides, device, dtype in inputs]
        gm = make_fx(function, decomposition_table=_backend.decompositions())(*fake)
    device = _placement.graph_device(gm)
    assert str(device) == "cuda:0"
    return Unit(gm, _backend.Options().native(device, _backend.Work()))


def compiled_graphs_run_where_tensors_are() -> None:
    import torch

    calls = _as_if_torch_had_a_gpu()

    def function(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.clone(), y.clone(), x * scale

    f32, f64 = torch.float32, torch.float64
    # The second tensor is column-major, and the third a number of the CPU.
    unit = _unit(function, ((3, 8), (8, 1), "cuda:0", f32), ((4, 2), (1, 4), "cuda:0", f32), ((), (), "cpu", f64))
    for seed in range(3):
        random = np.random.default_rng(seed)
        x = random.uniform(-1, 1, (3, 8)).astype(np.float32)
        y = np.asfortranarray(random.uniform(-1, 1, (4, 2)).astype(np.float32))
        calls.clear()
        results = unit([OnGpu(x), OnGpu(y), torch.tensor(0.5 + seed, dtype=f64)])
        assert (results[0].array == x).all() and (results[1].array == y).all()
        assert calls == ["empty [3, 8] [8, 1]", "empty [4, 2] [1, 4]", "empty [3, 8] [8, 1]"]
        assert results[1].array.strides == (4, 16)


def indices_are_checked_on_the_gpu() -> None:
    import torch

    calls = _as_if_torch_had_a_gpu()
    unit = _unit(
        lambda table, at: torch.nn.functional.embedding(at, table),
        ((5, 4), (4, 1), "cuda:0", torch.float32), ((3,), (1,), "cuda:0", torch.int64),
    )
    table, at = np.zeros((5, 4), dtype=np.float32), np.array([1, 2, 4], dtype=np.int64)
    indices = OnGpu(at)
    indices.tensor.code = 0
    unit([OnGpu(table), indices])
    assert calls == ["empty [3, 4] [4, 1]", "empty [] []", "assert index out of range in self"]


@pytest.mark.parametrize("function", [
    "tensors_stay_where_they_are", "tensors_that_do_not_fit_are_refused", "compiled_graphs_run_where_tensors_are",
    "indices_are_checked_on_the_gpu",
])
def test_device(function: str, in_process_with_gpu: Callable[[str], str]) -> None:
    in_process_with_gpu(function)
