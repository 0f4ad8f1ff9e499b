"""Recurrent layers and subgraphs."""

import numpy as np
from onnx import TensorProto, helper

from ..graph import Reject
from .registry import operator

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@operator("RNN", "GRU", "LSTM", weight=1.5)
def recurrent(b, op):
    steps, batch, features, hidden = b.int(1, 5), b.int(1, 3), b.choice([1, 2, 3, 8]), b.choice([1, 2, 4, 5])
    direction = b.choice(["forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    x = b.tensor(
        ("float32",),
        3,
        -10,
        10,
        nonempty=True,
        new_shape=(steps, batch, features),
        where=lambda v: v.shape[0] <= 6 and v.shape[2] <= 17,
    )
    steps, batch, features = x.shape
    gates = GATES[op]
    inputs = [
        x,
        b.new((directions, gates * hidden, features), "float32", -1, 1),
        b.new((directions, gates * hidden, hidden), "float32", -1, 1),
        b.new((directions, 2 * gates * hidden), "float32", -1, 1) if b.chance(0.6) else None,
        b.constant(b.rng.integers(1, steps + 1, batch).astype(np.int32)) if b.chance(0.3) else None,
        b.new((directions, batch, hidden), "float32", -1, 1) if b.chance(0.5) else None,
    ]
    attributes = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        inputs.append(b.new((directions, batch, hidden), "float32", -1, 1) if b.chance(0.5) else None)
        inputs.append(b.new((directions, 3 * hidden), "float32", -1, 1) if b.chance(0.3) else None)
    if op == "GRU":
        attributes["linear_before_reset"] = b.choice([None, 0, 1])
    if b.chance(0.2):
        attributes["clip"] = b.uniform(0.5, 3.0)
    if b.chance(0.3):
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
        attributes["activations"] = [b.choice(["Tanh", "Sigmoid", "Relu"]) for _ in range(count)] * directions
    b.node(op, inputs, outputs=b.int(1, 3 if op == "LSTM" else 2), **attributes)


def body_chain(b, source, name, prefix):
    """Nodes that keep the shape of a float: from `source` to `name`."""
    nodes = []
    for step in range(b.int(1, 3)):
        out = f"{prefix}_{step}"
        op = b.choice(["Tanh", "Neg", "Sigmoid", "Relu", "Abs", "Identity"])
        nodes.append(helper.make_node(op, [source], [out]))
        source = out
    nodes.append(helper.make_node("Identity", [source], [name]))
    return nodes


@operator("If")
def conditional(b, op):
    x = b.tensor(("float32",), (0, 4))
    prefix = b.name("b")
    branches = []
    for side in ("then", "else"):
        out = f"{prefix}_{side}"
        nodes = body_chain(b, x.name, out, f"{prefix}_{side}_n")
        branches.append(
            helper.make_graph(nodes, side, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, x.shape)])
        )
    condition = b.constant(np.array(b.chance(0.5))) if b.chance(0.5) else b.new((), "bool", constant=False)
    b.node(op, [condition], captured=[x], then_branch=branches[0], else_branch=branches[1])


@operator("Loop")
def loop(b, op):
    """A state that changes each time, a captured value, and a collected output."""
    x = b.tensor(("float32",), (0, 3), -20, 20)
    captured = b.tensor(("float32",), None, -2, 2, shape=x.shape)
    p = b.name("b")
    nodes = [
        helper.make_node("Add", [f"{p}_state", captured.name], [f"{p}_sum"]),
        helper.make_node(b.choice(["Tanh", "Identity", "Abs"]), [f"{p}_sum"], [f"{p}_next"]),
        helper.make_node("Neg", [f"{p}_next"], [f"{p}_piece"]),
        helper.make_node("Identity", [f"{p}_condition"], [f"{p}_go"]),
    ]
    info = helper.make_tensor_value_info
    collects = b.chance(0.6)
    outputs = [info(f"{p}_go", TensorProto.BOOL, []), info(f"{p}_next", TensorProto.FLOAT, x.shape)]
    if collects:
        outputs.append(info(f"{p}_piece", TensorProto.FLOAT, x.shape))
    else:
        del nodes[2]
    body = helper.make_graph(
        nodes,
        "body",
        [
            info(f"{p}_number", TensorProto.INT64, []),
            info(f"{p}_condition", TensorProto.BOOL, []),
            info(f"{p}_state", TensorProto.FLOAT, x.shape),
        ],
        outputs,
    )
    b.node(
        op,
        [b.constant(np.array(b.int(1, 4), np.int64)), b.constant(np.array(True)), x],
        outputs=2 if collects else 1,
        captured=[captured],
        body=body,
    )


@operator("Scan")
def scan(b, op):
    x = b.tensor(("float32",), (1, 4), -20, 20, nonempty=True)
    if x.shape[0] > 8:
        raise Reject
    state = b.tensor(("float32",), None, -20, 20, shape=x.shape[1:])
    p = b.name("b")
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node(b.choice(["Add", "Mul", "Max"]), [f"{p}_state", f"{p}_item"], [f"{p}_joined"]),
            helper.make_node("Tanh", [f"{p}_joined"], [f"{p}_next"]),
            helper.make_node("Identity", [f"{p}_next"], [f"{p}_piece"]),
        ],
        "body",
        [info(f"{p}_state", TensorProto.FLOAT, x.shape[1:]), info(f"{p}_item", TensorProto.FLOAT, x.shape[1:])],
        [info(f"{p}_next", TensorProto.FLOAT, x.shape[1:]), info(f"{p}_piece", TensorProto.FLOAT, x.shape[1:])],
    )
    b.node(op, [state, x], outputs=2, body=body, num_scan_inputs=1, scan_input_directions=b.choice([None, [0], [1]]))
