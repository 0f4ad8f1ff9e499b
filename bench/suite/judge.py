"""Whether outputs are right, by the rule of `bench/accuracy.py`: errors against f64, relative to the output's largest magnitude, beside
ONNX Runtime's."""
import pathlib

import elsewhere
import numpy as np

accuracy = elsewhere.load("bench", "accuracy")

#: What is allowed of f32 where there is no reference in f64.
TOLERANCE = 1e-4
#: What is allowed of lower precisions.
LOWER = {"bf16": 3e-2, "f16": 1e-2, "tf32": 5e-3}
#: Where ONNX Runtime itself is further from torch in f64, the exporter wrote something else, or a decision went another way.
DIFFERENT = 1e-3


def kinds_differ(got, want):
    """How many elements are finite in one of the arrays alone."""
    return int((np.isfinite(got) != np.isfinite(want)).sum()) if want.dtype.kind == "f" else 0


def error(got, want):
    """The figure of `accuracy.py` for one output; infinite if shapes or kinds of elements differ."""
    if got.shape != want.shape:
        return float("inf")
    if want.dtype.kind != "f":
        return float((got != want).any())
    return float("inf") if kinds_differ(got, want) else accuracy.scaled_error(got, want)


def stored(folder, name, count):
    """The arrays `NAME_N.npy` of a folder, or nothing if they are not all there."""
    paths = [pathlib.Path(folder) / f"{name}_{number}.npy" for number in range(count)]
    return [np.load(path) for path in paths] if all(path.exists() for path in paths) else None


def judge(outputs, folder, precision):
    """Errors of a model's outputs, and `right`: true, false, or nothing where there is nothing to compare with."""
    exact, peer = stored(folder, "reference", len(outputs)), stored(folder, "peer", len(outputs))
    worst = lambda found, wanted: max(map(error, found, wanted), default=0.0)  # noqa: E731
    row = {"error": None, "peer_error": None, "right": None}
    if exact:
        row["error"] = worst(outputs, exact)
    if exact and peer:
        row["peer_error"] = worst(peer, exact)
    if peer:
        row["difference"] = worst(outputs, peer)
    if precision in LOWER:
        found = row["error"] if exact else row.get("difference")
        row["right"] = None if found is None else found <= max(LOWER[precision], accuracy.FACTOR * (row["peer_error"] or 0))
    elif exact and (not peer or row["peer_error"] <= DIFFERENT):
        row["right"] = row["error"] <= max(accuracy.FACTOR * (row["peer_error"] or 0), accuracy.NEGLIGIBLE if peer else TOLERANCE)
    elif peer:
        row["right"] = row["difference"] <= TOLERANCE or bool(exact) and row["error"] <= accuracy.FACTOR * row["peer_error"]
    return row
