"""Parts of models."""

import onnx

from . import oracle
from .graph import names_read


def constant_names(model):
    """Initialisers and results of Constant nodes: shapes may depend on them, so they stay."""
    return {i.name for i in model.graph.initializer} | {
        name for node in model.graph.node if node.op_type == "Constant" for name in node.output
    }


def restricted(model, inputs, outputs, cuts, types=None):
    """The model with these outputs only, where `cuts` (name -> array) become inputs; and its inputs.

    `types` has arrays like those outputs that are none so far.
    """
    small = onnx.ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    arrays = {**inputs, **cuts}
    producers = {name: node for node in model.graph.node for name in node.output if name not in cuts}
    needed, waiting = set(), list(outputs)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            if name in producers:
                waiting.extend(names_read(producers[name]))
    infos = {n: oracle.value_info(n, a) for n, a in (types or {}).items()} | {o.name: o for o in model.graph.output}
    nodes = [n for n in model.graph.node if any(o in needed and o in producers for o in n.output)]
    # A cut result of a node that stays is written under another name.
    del graph.node[:], graph.output[:], graph.input[:]
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node)
        for i, name in enumerate(copy.output):
            if name in cuts:
                copy.output[i] = f"{name}.cut"
    graph.output.extend(infos[name] for name in outputs)
    graph.input.extend(oracle.value_info(n, a) for n, a in arrays.items() if n in needed)
    initializers = [i for i in model.graph.initializer if i.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    return small, {n: a for n, a in arrays.items() if n in needed}
