"""Folders of cases: `model.onnx`, `input_N.npy` in the model's order, `output_N.npy` if there is an answer, `why.txt`.

A case without outputs is a damaged model: it must end with one of the exit codes 0 to 4.
"""

import shutil

import numpy as np
import onnx

from . import mutate, oracle
from .compare import DIFFERENT, EQUAL, compare_all
from .judge import first_line


def write(folder, model, inputs, outputs, why):
    """Writes a case; `inputs` by name, `outputs` in the model's order or empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    for number, info in enumerate(model.graph.input):
        np.save(folder / f"input_{number}.npy", inputs[info.name])
    for number, array in enumerate(outputs):
        np.save(folder / f"output_{number}.npy", array)
    (folder / "why.txt").write_text(why.strip() + "\n")


def write_bytes(folder, model_bytes, why):
    """Writes a damaged model, which may not parse."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model_bytes)
    (folder / "why.txt").write_text(why.strip() + "\n")


def _arrays(folder, word):
    files = sorted(folder.glob(f"{word}_*.npy"), key=lambda f: int(f.stem.split("_")[1]))
    return [np.load(f) for f in files]


def replay(program, folder):
    """None if a case passes, otherwise what is wrong."""
    outputs = _arrays(folder, "output")
    data = (folder / "model.onnx").read_bytes()
    if not outputs:
        return mutate.problem(program.run(data, {}), program)
    model = onnx.load_from_string(data)
    inputs = dict(zip((i.name for i in model.graph.input), _arrays(folder, "input")))
    ended = program.run(data, inputs)
    if ended.code is None:
        return f"hang: more than {program.time_limit:g} s"
    if ended.code != 0:
        return f"exit {ended.code}: {first_line(ended.error)}"
    if program.compile_only:
        return None
    got = [ended.outputs.get(o.name, np.empty(0, np.void)) for o in model.graph.output]
    if compare_all(got, outputs)[0] == EQUAL:
        return None
    noisy = [outputs, *oracle.noisy_answers(model, inputs)]
    worst, different = compare_all(got, outputs, noisy)
    return f"outputs {different} differ" if worst == DIFFERENT else None
