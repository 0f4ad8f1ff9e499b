"""One verdict for one graph."""

import re
from dataclasses import dataclass

import numpy as np

from . import oracle
from .arbiter import arbiter_answer
from .compare import DIFFERENT, EQUAL, compare_all
from .parts import restricted

FAILURES = ("wrong", "crash", "internal", "hang", "refused")
UNDECIDED = ("unstable", "ambiguous")
VERDICTS = ("equal", "compiled", "refused-by-both", "unsupported", "ort-odd", *UNDECIDED, *FAILURES)
UNSUPPORTED, INTERNAL = 3, (70, 101)


@dataclass
class Judgement:
    """A verdict, why, and the numbers of outputs that are off."""

    verdict: str
    why: str = ""
    outputs: tuple = ()

    def signature(self):
        """What must stay the same while a case is made smaller."""
        return self.verdict, re.sub(r"\d+", "N", self.why)[:60] if self.verdict in ("internal", "refused") else ""


def first_line(text):
    """The first line of an error, with its cause if that stands in the next one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("note:")]
    return " ".join(lines[:2])[:300]


def _answer(evaluate, model, inputs):
    """The answer, or None and why there is none."""
    try:
        return evaluate(model, inputs), ""
    except oracle.Refused as error:
        return None, first_line(str(error))


def judge(program, model, inputs):
    """Runs a graph everywhere and compares."""
    ended = program.run(model.SerializeToString(), inputs)
    if ended.code is None:  # once more: the machine may have stood still
        ended = program.run(model.SerializeToString(), inputs)
    if ended.code is None:
        return Judgement("hang", f"more than {program.time_limit:g} s")
    if ended.code in INTERNAL:
        return Judgement("internal", first_line(ended.error))
    if ended.code < 0 or ended.code > 128:
        return Judgement("crash", f"exit {ended.code}: {first_line(ended.error)}")
    if ended.code == UNSUPPORTED:
        return Judgement("unsupported", first_line(ended.error))
    expected, ort_error = _answer(oracle.onnxruntime_answer, model, inputs)
    if ended.code != 0:
        return _refused(ended, model, inputs, expected)
    if program.compile_only:
        return Judgement("compiled")
    got = [ended.outputs.get(o.name, np.empty(0, np.void)) for o in model.graph.output]
    if expected is None:
        arbiter, arbiter_error = _answer(arbiter_answer, model, inputs)
        if arbiter is None:
            return Judgement("ambiguous", f"only Orchestrion runs it; {ort_error}; {arbiter_error}")
        same = compare_all(got, arbiter)[0] == EQUAL
        return Judgement("ort-odd" if same else "ambiguous", f"ONNX Runtime refuses: {ort_error}")
    return _compared(got, expected, model, inputs)


def _refused(ended, model, inputs, expected):
    why = f"exit {ended.code}: {first_line(ended.error)}"
    if expected is None:
        return Judgement("refused-by-both", why)
    reference, _ = _answer(oracle.reference_answer, model, inputs)
    return Judgement("refused-by-both" if reference is None else "refused", why)


def _compared(got, expected, model, inputs):
    worst, _ = compare_all(got, expected)
    if worst == EQUAL:
        return Judgement("equal")
    noisy = [expected, *oracle.noisy_answers(model, inputs)]
    worst, different = compare_all(got, expected, noisy)
    if worst == EQUAL:
        return Judgement("equal")
    if worst != DIFFERENT:
        return Judgement("unstable", "noise moves the result as much")
    faults = {"wrong": [], "ambiguous": [], "ort-odd": []}
    for i in different:
        others = [[answer[i]] for answer in noisy]
        verdict, error = _arbitrated(model, inputs, i, got[i], expected[i], others)
        off = f"output {i} ({model.graph.output[i].name}): {description(got[i], expected[i])}{error}"
        faults[verdict].append((i, off))
    verdict, outputs = next((v, f) for v, f in faults.items() if f)
    return Judgement(verdict, "; ".join(off for _, off in outputs[:3]), tuple(i for i, _ in outputs))


def _arbitrated(model, inputs, number, got, expected, noisy):
    """Whose fault it is that an output differs, by the arbiter's answer for this output alone."""
    name = model.graph.output[number].name
    arbiter, error = _answer(arbiter_answer, *restricted(model, inputs, [name], {}))
    if arbiter is None:
        return "wrong", f"; the reference has no answer: {error}"
    if compare_all([expected], arbiter, noisy)[0] != DIFFERENT:
        return "wrong", ""
    return ("ort-odd" if compare_all([got], arbiter, noisy)[0] != DIFFERENT else "ambiguous"), ""


def description(got, expected):
    """The first element that is off, in words."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        off = np.where(
            (got == expected) | ((got != got) & (expected != expected)), 0, np.where(np.isnan(off), np.inf, off)
        )
    at = np.unravel_index(int(np.argmax(off)), off.shape)
    return f"[{', '.join(str(int(i)) for i in at)}] is {got[at]} instead of {expected[at]}"
