"""A whole graph from a seed and a number."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx

from .graph import Builder, Reject, names_read
from .operators import RECIPES

OPERATOR_SETS = (13, 21)
SPECIAL_SHARE = 0.12
MOST_OUTPUTS = 5
# Recipes that a graph tries for each node it wants.
TRIES_PER_NODE = 6


@dataclass
class Case:
    """A model, its inputs by name, and how often each operator is in it."""

    model: onnx.ModelProto
    inputs: dict
    operators: Counter = field(default_factory=Counter)
    special: bool = False


def draw(seed, index, most_nodes=40):
    """The graph with this number; the same arguments always give the same graph."""
    for attempt in range(50):
        rng = np.random.default_rng([seed, index, attempt])
        builder = Builder(rng, int(rng.integers(OPERATOR_SETS[0], OPERATOR_SETS[1] + 1)), rng.random() < SPECIAL_SHARE)
        case = _drawn(builder, most_nodes)
        if case is not None:
            return case
    raise RuntimeError(f"no graph for seed {seed}, index {index}")


def _drawn(b, most_nodes):
    recipes = [r for r in RECIPES if r.since <= b.opset <= r.until]
    weights = np.array([r.weight for r in recipes])
    weights /= weights.sum()
    wanted = min(int(2 + b.rng.gamma(2.0, 8.0)), most_nodes)
    for _ in range(wanted * TRIES_PER_NODE):
        if sum(n.op_type != "Constant" for n in b.nodes) >= wanted:
            break
        recipe = recipes[int(b.rng.choice(len(recipes), p=weights))]
        before = b.snapshot()
        try:
            recipe.add(b, recipe.operator)
        except Reject:
            b.restore(before)
    outputs = _outputs(b)
    if not outputs:
        return None
    model, inputs = b.model(outputs)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    operators = Counter(node.op_type for node in model.graph.node)
    return Case(model, inputs, operators, b.special)


def _outputs(b):
    """Results that nothing reads, mostly those that depend on the most nodes, and sometimes an inner one."""
    before = {}
    for number, node in enumerate(b.nodes):
        ancestors = {number}.union(*(before.get(name, ()) for name in names_read(node)))
        before.update((name, ancestors) for name in node.output)
    read = {name for node in b.nodes for name in names_read(node)}
    computed = [v.name for v in b.values if v.name in before]
    leaves = sorted((name for name in computed if name not in read), key=lambda name: -len(before[name]))
    outputs = leaves[:MOST_OUTPUTS]
    inner = [name for name in computed if name in read]
    if inner and outputs and b.chance(0.3):
        outputs.append(b.choice(inner))
    return outputs
