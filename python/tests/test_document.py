"""Documents of small graphs, and which calls are taken."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph, GraphModule  # noqa: E402

from orchestrion.torch import _document, _support  # noqa: E402

aten = torch.ops.aten


def graph_of(target, *args, value, **kwargs) -> GraphModule:
    """A graph with one call; tensors become its inputs."""
    graph = Graph()
    given = []
    for number, argument in enumerate(args):
        if isinstance(argument, torch.Tensor):
            node = graph.placeholder(f"x{number}")
            node.meta["val"] = argument
            argument = node
        given.append(argument)
    call = graph.call_function(target, tuple(given), kwargs)
    call.meta["val"] = value
    call.meta["stack_trace"] = '  File "/home/me/model.py", line 7, in forward\n    return x + 3\n'
    graph.output((call, None))
    return GraphModule(torch.nn.Module(), graph)


def call_of(gm: GraphModule):
    """The node of its call."""
    return next(node for node in gm.graph.nodes if node.op == "call_function")


def test_a_document_is_plain_data() -> None:
    x = torch.zeros(2, 3).t()
    gm = graph_of(aten.add.Tensor, x, float("inf"), value=x, alpha=2)
    found = _document.document(gm, [torch.nn.Parameter(x)])
    assert json.loads(json.dumps(found)) == found
    known = {"dtype": "f32", "shape": [3, 2], "strides": [1, 3]}
    assert found["inputs"] == [{"name": "x0", **known, "kind": "parameter"}]
    [node] = found["nodes"]
    assert node["target"] == "aten.add.Tensor" and node["args"] == [{"value": "x0"}, {"float": "inf"}]
    assert node["kwargs"] == {"alpha": 2} and node["results"] == [known]
    assert node["where"] == "model.py:7: return x + 3"
    assert found["outputs"] == [{"value": node["name"], "strides": [1, 3]}, None]
    assert "index_check" not in found


def test_graphs_with_indices_check_them() -> None:
    table, at = torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64)
    gm = graph_of(aten.embedding.default, table, at, value=torch.zeros(3, 2))
    assert _document.document(gm)["index_check"] == _document.INDEX_CHECK
    assert "index_check" not in _document.document(gm, check_indices=False)


def test_copies_into_inputs_are_mutations() -> None:
    gm = graph_of(aten.neg.default, torch.zeros(2), value=torch.zeros(2))
    place, call, output = gm.graph.nodes
    with gm.graph.inserting_before(output):
        copy = gm.graph.call_function(aten.copy_.default, (place, call))
        copy.meta["val"] = torch.zeros(2)
    found = _document.document(gm)
    assert found["mutations"] == [{"output": 2, "input": 0}]
    assert found["outputs"][2] == found["outputs"][0] and len(found["nodes"]) == 1


def test_what_documents_do_not_hold_is_refused() -> None:
    complex_ = torch.zeros(2, dtype=torch.complex64)
    with pytest.raises(_document.DocumentError):
        _document.document(graph_of(aten.neg.default, complex_, value=complex_))
    with pytest.raises(_document.DocumentError):
        _document.document(graph_of(aten.relu_.default, torch.zeros(2), value=torch.zeros(2)))
    with pytest.raises(_document.DocumentError):
        _document.document(graph_of(aten.sum.default, torch.zeros(2), value=3))


def test_support_depends_on_arguments() -> None:
    x, mask = torch.zeros(4), torch.zeros(4, dtype=torch.bool)

    def taken(target, *args, value=x, **kwargs) -> bool:
        return _support.is_supported(call_of(graph_of(target, *args, value=value, **kwargs)))

    assert taken(aten.relu.default, x)
    assert not taken(aten.native_dropout.default, x, 0.5, True, value=(x, mask))
    assert not taken(aten.relu.default, torch.zeros(4, dtype=torch.complex64))
    assert taken(aten.pow.Tensor_Scalar, x, -1)
    assert not taken(aten.pow.Tensor_Scalar, torch.ones(4, dtype=torch.int64), -1)
    assert taken(aten.scatter_reduce.two, x, 0, torch.zeros(4, dtype=torch.int64), x, "amax")
    assert not taken(aten.scatter_reduce.two, x, 0, torch.zeros(4, dtype=torch.int64), x, "mean")
