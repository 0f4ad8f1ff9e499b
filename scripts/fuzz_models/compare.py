"""Whether two answers are equal: exactly for integers and booleans, within rounding for floats."""

import numpy as np

# Units in the last place: relative to the element, and to the largest element of the tensor.
ULPS_OF_ELEMENT = 64
ULPS_OF_LARGEST = 32
EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
# How many times as far as noise moved an element it may be off.
NOISE_FACTOR = 4
# Differences up to this part of the tensor's largest element are rounding, if noise explains them.
ROUNDING = {"float16": 3e-2, "float32": 1e-3, "float64": 1e-9}

EQUAL, NOISY, DIFFERENT = "equal", "noisy", "different"


def _largest(array):
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _difference(left, right):
    """Elementwise |left - right|; 0 where both are NaN or the same infinity, infinite where only one is."""
    with np.errstate(all="ignore"):
        left, right = left.astype(np.float64), right.astype(np.float64)
        difference = np.abs(left - right)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        return np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))


def spread(answers):
    """How far noise moved each element from the first of these answers, which is the one without noise."""
    plain = np.asarray(answers[0])
    moved = np.zeros(plain.shape)
    for other in answers[1:]:
        if np.shape(other) == plain.shape:
            moved = np.maximum(moved, _difference(plain, np.asarray(other)))
    return moved


def compare(got, expected, noisy=()):
    """EQUAL; NOISY if only noise explains a difference that is more than rounding; or DIFFERENT.

    `noisy` has ONNX Runtime's answer for this output, then its answers with noise.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return DIFFERENT
    if not expected.size:
        return EQUAL
    difference = _difference(got, expected)
    if expected.dtype.name in EPSILON:
        epsilon, largest = EPSILON[expected.dtype.name], _largest(expected)
        with np.errstate(all="ignore"):
            size = np.nan_to_num(np.abs(expected.astype(np.float64)), nan=0.0, posinf=0.0, neginf=0.0)
        allowed = epsilon * (ULPS_OF_ELEMENT * size + ULPS_OF_LARGEST * largest) + np.finfo(expected.dtype).tiny
        rounding = ROUNDING[expected.dtype.name] * largest
    else:
        allowed, rounding = np.zeros(expected.shape), 0.0
    if np.all(difference <= allowed):
        return EQUAL
    if not noisy:
        return DIFFERENT
    moved = spread(noisy)
    if moved.shape != difference.shape:
        return DIFFERENT
    if np.any(difference > allowed + NOISE_FACTOR * moved):
        return DIFFERENT
    return EQUAL if np.all(difference <= allowed + rounding) else NOISY


def compare_all(got, expected, noisy=()):
    """The worst of all outputs, and the numbers of those that are DIFFERENT."""
    if len(got) != len(expected):
        return DIFFERENT, list(range(len(expected)))
    results = [compare(g, e, [answer[i] for answer in noisy]) for i, (g, e) in enumerate(zip(got, expected))]
    worst = max(results, key=[EQUAL, NOISY, DIFFERENT].index, default=EQUAL)
    return worst, [i for i, result in enumerate(results) if result == DIFFERENT]
