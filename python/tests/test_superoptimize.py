"""Kernels that are searched for and proved, from Python."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import model, numbers, value
from onnx import helper

import orchestrion as orc

ATTENTION = """mugraph "attention" {
  t0 = input "q" [2, 3, 5]
  t1 = input "k" [2, 5, 24]
  t2 = input "v" [2, 24, 7]
  t3 = matmul t0, t1
  t4 = exp t3
  t5 = sum(2) t4
  t6 = div t4, t5
  t7 = matmul t6, t2
  output "o" t7
}
"""


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.exp(q @ k)
    return scores / scores.sum(-1, keepdims=True) @ v


INPUTS = [numbers(2, 3, 5, seed=1), numbers(2, 5, 24, seed=2), numbers(2, 24, 7, seed=3)]


@pytest.fixture(scope="module")
def found(cache: str) -> orc.Superoptimized:
    return orc.superoptimize(ATTENTION, cache_dir=cache, calibrate=False, threads=1, measure=True, progress=False)


def test_a_program_is_a_callable_with_its_certificate(found: orc.Superoptimized) -> None:
    np.testing.assert_allclose(found(*INPUTS), attention(*INPUTS), rtol=1e-4, atol=1e-6)
    assert [port.name for port in found.inputs] == ["q", "k", "v"]
    assert found.certificate.log2_bound <= -80
    assert "block [" in found.certificate.candidate and found.certificate.premises
    assert json.loads(found.proof)["program"] == found.certificate.program
    assert not found.unstable
    assert found.verify(*INPUTS)


def test_times_are_modelled_and_measured(found: orc.Superoptimized, cache: str) -> None:
    assert found.measured is not None
    for times in (found.modelled, found.measured):
        assert min(times) > 0 and times.gain == times.templates_us / times.found_us
    plain = orc.superoptimize(ATTENTION, cache_dir=cache, calibrate=False, progress=False)
    assert plain.measured is None


def test_c_is_compiled_and_computes_the_same(found: orc.Superoptimized, tmp_path: Path) -> None:
    source = found.emit("c")
    assert isinstance(source, str) and "int attention_run(const float *in0_q" in source
    (tmp_path / "attention.c").write_text(source)
    flags = "-O2 -march=native -std=gnu11 -ffp-contract=fast -fno-math-errno -fno-trapping-math -shared -fPIC"
    subprocess.run(["cc", *flags.split(), "attention.c", "-lm", "-o", "attention.so"], cwd=tmp_path, check=True)
    run = ctypes.CDLL(str(tmp_path / "attention.so")).attention_run
    out = np.empty((2, 3, 7), np.float32)
    assert run(*[ctypes.c_void_p(array.ctypes.data) for array in [*INPUTS, out]]) == 0
    np.testing.assert_allclose(out, attention(*INPUTS), rtol=1e-4, atol=1e-6)


def test_a_program_may_have_several_outputs(cache: str) -> None:
    program = """mugraph "sum and norm" {
  t0 = input "x" [5, 24]
  t1 = input "r" [5, 24]
  t2 = add t0, t1
  t3 = rms_norm(1/1000) t2
  output "normed" t3
  output "sum" t2
}
"""
    x, r = numbers(5, 24, seed=1), numbers(5, 24, seed=2)
    found = orc.superoptimize(program, cache_dir=cache, calibrate=False, threads=1, progress=False)
    normed, total = found(x, r)
    np.testing.assert_allclose(total, x + r, rtol=1e-6)
    expected = (x + r) / np.sqrt(np.mean((x + r) ** 2, -1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(normed, expected, rtol=1e-4, atol=1e-6)
    assert [port.name for port in found.outputs] == ["normed", "sum"]


def test_an_executable_is_loaded_without_a_compiler(found: orc.Superoptimized) -> None:
    content = found.emit("orc")
    assert isinstance(content, bytes)
    np.testing.assert_array_equal(orc.load(content)(*INPUTS), found(*INPUTS))


def test_what_is_wrong_is_said(found: orc.Superoptimized, cache: str) -> None:
    with pytest.raises(orc.UsageError, match="as c, cuda or orc"):
        found.emit("rust")
    with pytest.raises(orc.Unsupported, match="for GPUs"):
        found.emit("cuda")
    with pytest.raises(orc.ModelError, match="line 2"):
        orc.superoptimize('mugraph "p" {\n  t0 = inputs "x" [2]\n}\n', cache_dir=cache)
    with pytest.raises(orc.UsageError, match="`args`"):
        orc.superoptimize(attention, cache_dir=cache)
    with pytest.raises(orc.UsageError, match="functions and modules"):
        orc.superoptimize(ATTENTION, INPUTS, cache_dir=cache)
    nothing = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", [4])], [value("y", [4])])
    with pytest.raises(orc.Unsupported, match="has no part"):
        orc.superoptimize(nothing, cache_dir=cache, calibrate=False, progress=False)


def test_an_onnx_model_takes_what_is_found(cache: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("Relu", ["o"], ["y"]),
    ]
    inputs = [value("q", [2, 3, 5]), value("k", [2, 5, 24]), value("v", [2, 24, 7])]
    proto = model(nodes, inputs, [value("y", [2, 3, 7])])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    for source in (proto, tmp_path / "model.onnx"):
        found = orc.superoptimize(source, cache_dir=cache, calibrate=False, progress=False)
        np.testing.assert_allclose(found(*INPUTS), np.maximum(attention(*INPUTS), 0), rtol=1e-4, atol=1e-6)
        assert found.certificates and "matmul" in found.certificate.program
        # Kernels that are found go without the plan's maxima of zero only where they are proved to.
        assert found.verify(*INPUTS)


def test_a_function_of_pytorch_is_traced(cache: str) -> None:
    torch = pytest.importorskip("torch")

    def function(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k, -1) @ v

    tensors = [torch.from_numpy(array) for array in INPUTS]
    found = orc.superoptimize(function, tensors, cache_dir=cache, calibrate=False, progress=False)
    torch.testing.assert_close(found(*tensors), function(*tensors), rtol=1e-4, atol=1e-6)
    assert found.certificate.log2_bound <= -80

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Linear(64, 96, bias=False)
            self.up = torch.nn.Linear(64, 96, bias=False)

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.silu(self.gate(x)) * self.up(x)

    gated, x = Gated(), torch.from_numpy(numbers(8, 64))
    found = orc.superoptimize(gated, [x], cache_dir=cache, calibrate=False, progress=False)
    torch.testing.assert_close(found(x), gated(x), rtol=1e-4, atol=1e-5)
