"""Compiling, loading, saving, symbolic dimensions, errors."""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import expected, layer, model, numbers, value
from onnx import helper

import orchestrion as orc


def test_sources(tmp_path: Path, cache: str) -> None:
    proto = layer()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    x = numbers(5, 6)
    for source in [proto, proto.SerializeToString(), path, str(path)]:
        executable = orc.compile(source, cache_dir=cache, calibrate=False, progress=False)
        np.testing.assert_allclose(executable(x)[0], expected(x)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(orc.UsageError, match="the model is a int; the path of an ONNX file"):
        orc.compile(5)


def test_saving_loading_pickling(tmp_path: Path, exe: orc.Executable) -> None:
    x = numbers(5, 6)
    want = exe(x)
    path = tmp_path / "model.orc"
    exe.save(path)
    for loaded in [orc.load(path), orc.load(path.read_bytes(), threads=1), pickle.loads(pickle.dumps(exe))]:
        for got, expect in zip(loaded(x), want, strict=True):
            np.testing.assert_array_equal(got, expect)
    with pytest.raises(orc.InputError, match="does not hold its model"):
        orc.load(path).verify(x)


def test_damage_is_noticed(tmp_path: Path, exe: orc.Executable) -> None:
    content = bytearray(pickle.loads(pickle.dumps(exe))._native.to_bytes())
    content[len(content) // 2] ^= 1
    with pytest.raises(orc.ModelError):
        orc.load(bytes(content))
    with pytest.raises(orc.ModelError):
        orc.load(b"")
    with pytest.raises(orc.FileError) as error:
        orc.load(tmp_path / "missing.orc")
    assert isinstance(error.value, OSError) and "missing.orc" in str(error.value)


def test_errors_have_exit_codes(cache: str) -> None:
    unknown = model([helper.make_node("Nonsense", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])
    with pytest.raises(orc.Unsupported, match="Nonsense") as error:
        orc.compile(unknown, cache_dir=cache, progress=False)
    assert error.value.exit_code == 3
    with pytest.raises(orc.ModelError) as error:
        orc.compile(b"no model", cache_dir=cache, progress=False)
    assert error.value.exit_code == 1
    with pytest.raises(orc.UsageError, match="precision `f8` is not known") as error:
        orc.compile(layer(), precision="f8", cache_dir=cache, progress=False)
    assert error.value.exit_code == 2
    with pytest.raises(orc.UsageError, match="option `jobs` is -1"):
        orc.compile(layer(), jobs=-1, cache_dir=cache, progress=False)
    with pytest.raises(orc.MachineError) as error:
        orc.compile(layer(), cc="/no/such/compiler", cache_dir=cache, progress=False)
    assert error.value.exit_code == 4


def test_symbolic_dimensions(cache: str) -> None:
    options = {"cache_dir": cache, "calibrate": False, "progress": False}
    fixed = orc.compile(layer("rows"), shapes={"x": (3, 6)}, **options)
    assert isinstance(fixed, orc.Executable) and fixed.inputs[0].shape == (3, 6)
    fixed = orc.compile(layer("rows"), dims={"rows": 4}, **options)
    assert isinstance(fixed, orc.Executable) and fixed.inputs[0].shape == (4, 6)
    dynamic = orc.compile(layer("rows"), max_sizes=2, **options)
    assert isinstance(dynamic, orc.DynamicExecutable) and dynamic.open_dims == ("rows",)
    for rows in [1, 2, 3, 2, 1]:
        x = numbers(rows, 6)
        np.testing.assert_allclose(dynamic(x)[0], expected(x)[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dynamic(x=x)[1], expected(x)[1], rtol=1e-5, atol=1e-6)
    assert "2 sizes compiled" in repr(dynamic)
    with pytest.raises(orc.UsageError):
        dynamic()
    with pytest.raises(orc.Error):
        dynamic(numbers(2, 7))


def test_sessions(cache: str) -> None:
    options = {"cache_dir": cache, "calibrate": False, "progress": False}
    x = numbers(5, 6)
    session = orc.InferenceSession(layer("rows").SerializeToString(), providers=["CPUExecutionProvider"], **options)
    assert session.get_inputs() == [orc.NodeArg("x", "tensor(float)", ["rows", 6])]
    assert [output.name for output in session.get_outputs()] == ["y", "s"]
    y, s = session.run(None, {"x": x})
    np.testing.assert_allclose(y, expected(x)[0], rtol=1e-5, atol=1e-6)
    (s,) = session.run(["s"], {"x": x[:2]})
    np.testing.assert_allclose(s, expected(x[:2])[1], rtol=1e-5, atol=1e-6)
    with pytest.raises(orc.UsageError, match="the model has no output z"):
        session.run(["z"], {"x": x})
    with pytest.raises(orc.UsageError, match="no tensor is given for input x"):
        session.run(None, {})


def without_a_compiler(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program where no compiler is on the path and there is no home."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "ORCHESTRION_CC")}
    environment.update(PATH=str(tmp_path), ORCHESTRION_CACHE=str(tmp_path / "cache"))
    program = f"import sys; sys.path.insert(0, sys.argv[1])\n{program}"
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_a_compiler_the_error_says_what_to_do(tmp_path: Path) -> None:
    program = "sys.modules['ziglang'] = None; import orchestrion as orc, conftest; orc.compile(conftest.layer())"
    result = without_a_compiler(program, tmp_path)
    assert "MachineError" in result.stderr and "orchestrion[cc]" in result.stderr, result.stderr


def test_the_extra_cc_brings_a_compiler(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    program = """
import orchestrion as orc, conftest
from onnx import helper
nodes = [
    helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
    helper.make_node("Softmax", ["c"], ["s"]),
    helper.make_node("Gelu", ["c"], ["g"]),
    helper.make_node("MatMul", ["s", "g"], ["y"]),
]
x = conftest.numbers(2, 3, 17, 17)
inputs, outputs = [conftest.value("x", [2, 3, 17, 17])], [conftest.value("y", [2, 8, 17, 17])]
proto = conftest.model(nodes, inputs, outputs, {"w": conftest.numbers(8, 3, 3, 3)})
for device in DEVICES:
    exe = orc.compile(proto, device=device, progress=False)
    assert exe.verify(x)
    print(device)
"""
    devices = ["cpu", "x86-64-v3"] if platform.machine() == "x86_64" else ["cpu"]
    result = without_a_compiler(program.replace("DEVICES", repr(devices)), tmp_path)
    assert result.stdout.split() == devices, result.stderr


def test_without_a_home_the_error_says_what_to_set() -> None:
    program = "import orchestrion._compile as c; c.cache_folder(None)"
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "ORCHESTRION_CACHE")}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "set HOME, XDG_CACHE_HOME or ORCHESTRION_CACHE" in result.stderr


def test_constants_are_replaced(cache: str, tmp_path: Path) -> None:
    exe = orc.compile(layer(), updatable=["w"], cache_dir=cache, calibrate=False, progress=False)
    assert isinstance(exe, orc.Executable)
    assert [port.name for port in exe.inputs] == ["x"]
    assert exe.updatable == (("w", "f32", (6, 4)),)
    x, weight = numbers(5, 6), numbers(6, 4, seed=1)
    np.testing.assert_allclose(exe(x)[0], expected(x)[0], rtol=1e-5, atol=1e-6)
    context = exe.context()
    exe.set_constants({"w": weight})
    want = np.maximum(x @ weight, 0)
    weight[:] = 0
    for run in (exe, context, pickle.loads(pickle.dumps(exe))):
        np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-6)
    assert exe.verify(x).passed
    exe.save(tmp_path / "new.orc")
    (tmp_path / "layer.onnx").write_bytes(layer().SerializeToString())
    loaded = orc.load(tmp_path / "new.orc")
    np.testing.assert_allclose(loaded(x)[0], want, rtol=1e-5, atol=1e-6)
    assert loaded.verify(x, model=tmp_path / "layer.onnx").passed
    with pytest.raises(orc.InputError, match=r"constant `w` is f32\[4, 6\], the model was compiled for f32\[6, 4\]"):
        exe.set_constants({"w": numbers(4, 6)})
    with pytest.raises(orc.InputError, match="`v` cannot be replaced"):
        exe.set_constants({"v": weight})
    with pytest.raises(orc.InputError, match="no constant of the model is named `v`"):
        orc.compile(layer(), updatable=["v"], cache_dir=cache, calibrate=False, progress=False)


def test_constants_of_all_sizes_are_replaced(cache: str) -> None:
    exe = orc.compile(layer("rows"), updatable=["w"], cache_dir=cache, calibrate=False, progress=False)
    assert isinstance(exe, orc.DynamicExecutable)
    weight = numbers(6, 4, seed=2)
    exe(numbers(3, 6))
    exe.set_constants({"w": weight})
    for rows in (3, 4):
        x = numbers(rows, 6)
        np.testing.assert_allclose(exe(x)[0], np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)
    with pytest.raises(orc.UsageError, match="not updatable"):
        exe.set_constants({"axes": weight})
