"""Calls: what is taken as a tensor, what comes back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import expected, layer, model, numbers, value
from onnx import TensorProto, helper

import orchestrion as orc


def check(results: tuple[np.ndarray, ...], x: np.ndarray) -> None:
    for got, want in zip(results, expected(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_arrays_in_arrays_out(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    results = exe(x)
    assert isinstance(results, tuple) and all(type(result) is np.ndarray for result in results)
    assert [result.dtype for result in results] == [np.float32, np.float32]
    check(results, x)
    check(exe(x=x), x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.concatenate([x, x], axis=1)[:, :6],
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.ascontiguousarray(x[::-1])[::-1],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(5, 6),
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(5, 6),
        lambda x: x.astype(">f4"),
        lambda x: x.tolist(),
        lambda x: [list(row) for row in x],
    ],
    ids=["column-major", "columns", "every second", "reversed", "misaligned", "read-only", "big-endian", "lists", "mixed"],
)
def test_any_strides(exe: orc.Executable, view) -> None:
    x = numbers(5, 6, seed=1)
    check(exe(view(x)), x)


def test_broadcast_rows(exe: orc.Executable) -> None:
    row = numbers(1, 6)
    check(exe(np.broadcast_to(row, (5, 6))), np.repeat(row, 5, axis=0))


def test_out(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    y, s = np.zeros((5, 4), np.float32), np.zeros(5, np.float32)
    for out in [(y, s), [y, s], {"s": s, "y": y}]:
        y[:], s[:] = 0, 0
        assert exe(x, out=out) is out
        check((y, s), x)
    wide = np.full((5, 8), 7, np.float32)
    exe(x, out=(wide[:, ::2], s))
    check((wide[:, ::2], s), x)
    assert (wide[:, 1::2] == 7).all()


def test_out_is_refused(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    s = np.zeros(5, np.float32)
    with pytest.raises(orc.UsageError, match="`out` has 1 tensors, the model has 2 outputs: y, s"):
        exe(x, out=s)
    with pytest.raises(orc.InputError, match="output `y` overlaps that of input `x`"):
        exe(x, out=(x[:, :4], s))
    both = np.zeros((5, 4), np.float32)
    with pytest.raises(orc.InputError, match="output `s` overlaps that of output `y`"):
        exe(x, out=(both, both[:, 0]))
    read_only = np.zeros((5, 4), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(orc.InputError, match="output `y` is read-only"):
        exe(x, out=(read_only, s))
    with pytest.raises(orc.InputError, match="share memory"):
        exe(x, out=(np.lib.stride_tricks.as_strided(both, (5, 4), (4, 4)), s))
    with pytest.raises(orc.InputError, match=r"output `y` is f64\[5, 4\], the model was compiled for f32\[5, 4\]"):
        exe(x, out=(np.zeros((5, 4)), s))
    with pytest.raises(orc.InputError, match="which is no tensor"):
        exe(x, out=([0.0], s))


def test_wrong_inputs_are_named(exe: orc.Executable) -> None:
    with pytest.raises(orc.UsageError, match="no tensor is given for input `x`; the model has x"):
        exe()
    with pytest.raises(orc.UsageError, match="2 tensors are given, the model has 1: x"):
        exe(numbers(5, 6), numbers(5, 6))
    with pytest.raises(orc.UsageError, match="the model has no input `z`; it has x"):
        exe(numbers(5, 6), z=1)
    with pytest.raises(orc.UsageError, match="input `x` is given twice"):
        exe(numbers(5, 6), x=numbers(5, 6))
    with pytest.raises(orc.InputError, match=r"input `x` is f32\[6, 5\], the model was compiled for f32\[5, 6\]"):
        exe(numbers(6, 5))
    with pytest.raises(orc.InputError, match=r"input `x` is f64\[5, 6\]"):
        exe(np.zeros((5, 6)))
    with pytest.raises(orc.InputError, match="input `x`"):
        exe("text")
    with pytest.raises(orc.InputError, match="input `x`"):
        exe(np.zeros((5, 6), object))
    with pytest.raises(orc.InputError, match="input `x`"):
        exe(None)
    error = pytest.raises(ValueError, exe, numbers(1, 1)).value
    assert isinstance(error, orc.Error) and error.exit_code == 1


def test_all_types_pass(cache: str) -> None:
    types = {
        "float32": TensorProto.FLOAT,
        "float64": TensorProto.DOUBLE,
        "float16": TensorProto.FLOAT16,
        "int8": TensorProto.INT8,
        "int16": TensorProto.INT16,
        "int32": TensorProto.INT32,
        "int64": TensorProto.INT64,
        "uint8": TensorProto.UINT8,
        "uint16": TensorProto.UINT16,
        "uint32": TensorProto.UINT32,
        "uint64": TensorProto.UINT64,
        "bool": TensorProto.BOOL,
    }
    nodes, inputs, outputs = [], [], []
    for name, elem in types.items():
        nodes.append(helper.make_node("Transpose", [f"x_{name}"], [f"y_{name}"], perm=[1, 0]))
        inputs.append(value(f"x_{name}", [2, 3], elem))
        outputs.append(value(f"y_{name}", [3, 2], elem))
    executable = orc.compile(model(nodes, inputs, outputs), cache_dir=cache, calibrate=False, progress=False)
    given = [(np.arange(6).reshape(2, 3) % 2).astype(name) for name in types]
    for x, y in zip(given, executable(*given), strict=True):
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x.T)


def test_bf16(cache: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    node = helper.make_node("Transpose", ["x"], ["y"])
    ports = [value("x", [2, 3], TensorProto.BFLOAT16)], [value("y", [3, 2], TensorProto.BFLOAT16)]
    executable = orc.compile(model([node], *ports), cache_dir=cache, calibrate=False, progress=False)
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    y = executable(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.float32), x.T.astype(np.float32))


def test_empty_and_scalar_tensors(cache: str) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", ["a"], ["b"])]
    ports = [value("x", [0, 3]), value("a", [])], [value("y", [0, 3]), value("b", [])]
    executable = orc.compile(model(nodes, *ports), cache_dir=cache, calibrate=False, progress=False)
    y, b = executable(np.zeros((0, 3), np.float32), 2.5)
    assert y.shape == (0, 3) and b.shape == () and b == -2.5


def test_contexts_share_an_executable(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    contexts = [exe.context() for _ in range(3)]
    for context in contexts:
        check(context(x), x)
        check(context(x=x), x)


def test_descriptions(exe: orc.Executable) -> None:
    assert exe.inputs == (orc.Tensor("x", "f32", (5, 6)),)
    assert [output.name for output in exe.outputs] == ["y", "s"]
    assert repr(exe) == "<orchestrion.Executable (x: f32[5, 6]) -> (y: f32[5, 4], s: f32[5])>"
    assert "modelled" in exe.explain() and "measured" not in exe.explain()
    assert '"run_us":null' in exe.report().html and '"run_us":null' not in exe.report(numbers(5, 6)).html
    assert "<iframe" in exe.report()._repr_html_() and "<script" not in exe.report()._repr_html_()
    assert "measured" in exe.explain(numbers(5, 6))
    assert exe.manifest()["inputs"][0]["name"] == "x"
    timing = exe.bench(numbers(5, 6), seconds=0)
    assert 0 < timing.best_us <= timing.median_us and timing.runs >= 5


def test_verification(exe: orc.Executable) -> None:
    verification = exe.verify(numbers(5, 6))
    assert verification and verification.outputs[0].max_scaled < 1e-5
    assert not exe.verify(numbers(5, 6), tolerance=0.0) or verification.outputs[0].max_abs == 0


def test_a_model_of_other_sizes_is_another_executable(cache: str) -> None:
    three = orc.compile(layer(3), cache_dir=cache, calibrate=False, progress=False)
    x = numbers(3, 6)
    check(three(x), x)
