"""The answer that decides between Orchestrion and ONNX Runtime."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import oracle
from .graph import names_read


def arbiter_answer(model, inputs):
    """The outputs by the reference, node by node; ONNX Runtime answers for a node that the reference cannot evaluate."""
    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer} | dict(inputs)
    for node in model.graph.node:
        values.update(_results(node, values, model.opset_import))
    return [values[o.name] for o in model.graph.output]


def _results(node, values, opset_imports):
    """Name -> value of what one node computes."""
    read, names = sorted(set(names_read(node))), [name for name in node.output if name]

    def alone(inputs):
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        graph = helper.make_graph([node], "node", inputs, outputs)
        return helper.make_model(graph, opset_imports=opset_imports, ir_version=oracle.IR_VERSION)

    feed = {name: values[name] for name in read}
    try:
        results = oracle.reference_answer(alone([onnx.ValueInfoProto(name=name) for name in read]), feed)
    except oracle.Refused as error:
        if not all(isinstance(value, np.ndarray) for value in feed.values()):
            raise
        try:
            results = oracle.onnxruntime_answer(alone([oracle.value_info(n, a) for n, a in feed.items()]), feed)
        except oracle.Refused:
            raise error from None
    return dict(zip(names, results))
