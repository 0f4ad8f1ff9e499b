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


def test_random_numbers_come_from_an_input() -> None:
    x = torch.zeros(4)
    gm = graph_of(aten.rand_like.default, x, value=x)
    found = _document.document(gm)
    assert found["inputs"][-1] == {"name": _document.SEED, "dtype": "i64", "shape": [1], "strides": [1], "kind": "input"}
    assert found["nodes"][0]["kwargs"] == {"seed": {"value": _document.SEED}, "stream": 0}


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
    assert taken(aten.native_dropout.default, x, 0.5, True, value=(x, mask))
    assert not taken(aten.bernoulli.default, torch.zeros(4, dtype=torch.int64), value=torch.zeros(4, dtype=torch.int64))
    q, log, state = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 32), torch.zeros((), dtype=torch.int64)
    efficient = aten._scaled_dot_product_efficient_attention
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    assert taken(efficient.default, q, q, q, None, True, 0.0, value=(q, log, state, state))
    assert not taken(efficient.default, q, q, q, None, True, 0.1, value=(q, log, state, state))
    for shape, wanted, expected in [((1, 2, 4, 4), True, True), ((1, 1, 4, 4), True, False), ((1, 1, 4, 4), False, True)]:
        arguments = (q, q, q, q, torch.zeros(shape), q, log, state, state, 0.0, [True, True, True, wanted])
        assert taken(backward, *arguments, value=(q, q, q, torch.zeros(shape))) == expected
    long = torch.zeros(1, 8, 2048, 8)
    log = torch.zeros(1, 8, 2048)
    assert not taken(backward, long, long, long, long, None, long, log, state, state, 0.0, [True] * 4, value=(long, long, long, None))
    assert not taken(backward, q, q, q, q, None, q, log, state, state, 0.1, [True] * 4, value=(q, q, q, None))
    assert not taken(aten.relu.default, torch.zeros(4, dtype=torch.complex64))
    assert taken(aten.pow.Tensor_Scalar, x, -1)
    assert not taken(aten.pow.Tensor_Scalar, torch.ones(4, dtype=torch.int64), -1)
    assert taken(aten.scatter_reduce.two, x, 0, torch.zeros(4, dtype=torch.int64), x, "amax")
    assert not taken(aten.scatter_reduce.two, x, 0, torch.zeros(4, dtype=torch.int64), x, "mean")
