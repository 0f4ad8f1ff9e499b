"""Damaged models: whatever a file holds, the program must end by itself, with an exit code that says what is wrong."""

import pathlib

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from .draw import draw

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ALLOWED_CODES = (0, 1, 2, 3, 4)
EXTREMES = [0, -1, 1, 2, 3, 7, 64, -2, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63)]
FLOAT_EXTREMES = [float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e30, 1e-38]
OPERATOR_SETS = [-1, 0, 1, 6, 9, 11, 13, 18, 23, 99, 1 << 40]


def problem(ended, program):
    """None if a run ended as it may, otherwise how it ended."""
    if ended.code is None:
        return f"hang: more than {program.time_limit:g} s"
    if ended.code in ALLOWED_CODES:
        return None
    lines = [line for line in ended.error.splitlines() if line.strip()]
    kind = "internal" if ended.code in (70, 101) else "crash"
    return f"{kind}: exit {ended.code}: {' '.join(lines[:2])[:300]}"


def _pick(rng, items):
    items = list(items)
    return items[int(rng.integers(len(items)))] if items else None


def _dimension(rng, model):
    infos = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    dims = [d for i in infos for d in i.type.tensor_type.shape.dim] or None
    if dims:
        _pick(rng, dims).dim_value = _pick(rng, EXTREMES)


def _initializer_dimension(rng, model):
    tensor = _pick(rng, model.graph.initializer)
    if tensor and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _pick(rng, EXTREMES)


def _rank(rng, model):
    info = _pick(rng, [*model.graph.input, *model.graph.output])
    if info:
        shape = info.type.tensor_type.shape
        if shape.dim and rng.random() < 0.5:
            del shape.dim[-1]
        else:
            shape.dim.add().dim_value = 2


def _initializer_element(rng, model):
    tensor = _pick(rng, model.graph.initializer)
    if not tensor:
        return
    try:
        array = numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError, KeyError):
        return
    if array.size and array.dtype.kind in "iuf":
        value = _pick(rng, FLOAT_EXTREMES if array.dtype.kind == "f" else EXTREMES)
        with np.errstate(all="ignore"):
            array.reshape(-1)[int(rng.integers(array.size))] = np.array(value).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _initializer_bytes(rng, model):
    tensor = _pick(rng, model.graph.initializer)
    if tensor:
        data = tensor.raw_data
        tensor.raw_data = (
            data[: int(rng.integers(len(data) + 1))] if rng.random() < 0.5 else data + b"\0" * int(rng.integers(1, 9))
        )


def _drop_initializer(rng, model):
    if model.graph.initializer:
        del model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]


def _type(rng, model):
    kind = int(rng.integers(0, 24))
    if rng.random() < 0.5 or not model.graph.initializer:
        info = _pick(rng, [*model.graph.input, *model.graph.output])
        if info:
            info.type.tensor_type.elem_type = kind
    else:
        _pick(rng, model.graph.initializer).data_type = kind


def _attribute(rng, model):
    attributes = [a for n in model.graph.node for a in n.attribute]
    attribute = _pick(rng, attributes)
    if attribute is None:
        return
    if attribute.type == AttributeProto.INT:
        attribute.i = _pick(rng, EXTREMES)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = _pick(rng, FLOAT_EXTREMES)
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        how = rng.random()
        if how < 0.6:
            attribute.ints[int(rng.integers(len(attribute.ints)))] = _pick(rng, EXTREMES)
        elif how < 0.8:
            del attribute.ints[-1]
        else:
            attribute.ints.append(_pick(rng, EXTREMES))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = _pick(rng, [b"", b"x", attribute.s + b",", attribute.s[::-1], b"\xff", b"linear", b"...->"])
    elif attribute.type == AttributeProto.GRAPH:
        inner = onnx.ModelProto(graph=attribute.g)
        _pick(rng, GRAPH_CHANGES)(rng, inner)
        attribute.g.CopyFrom(inner.graph)
    elif attribute.type == AttributeProto.TENSOR:
        attribute.t.data_type = int(rng.integers(0, 24))


def _attribute_list(rng, model):
    node = _pick(rng, model.graph.node)
    if node is None:
        return
    how = rng.random()
    if node.attribute and how < 0.4:
        del node.attribute[int(rng.integers(len(node.attribute)))]
    elif node.attribute and how < 0.6:
        _pick(rng, node.attribute).type = int(rng.integers(0, 15))
    elif node.attribute and how < 0.7:
        node.attribute.append(node.attribute[0])
    else:
        name = _pick(
            rng, ["axis", "axes", "to", "perm", "group", "keepdims", "strides", "pads", "blocksize", "p", "size"]
        )
        node.attribute.append(
            helper.make_attribute(name, _pick(rng, [_pick(rng, EXTREMES), [_pick(rng, EXTREMES)] * 2]))
        )


def _inputs(rng, model):
    node = _pick(rng, [n for n in model.graph.node if n.input])
    if node is None:
        return
    at = int(rng.integers(len(node.input)))
    names = [i.name for i in model.graph.input] + [i.name for i in model.graph.initializer]
    names += [o for n in model.graph.node for o in n.output]
    how = int(rng.integers(7))
    if how == 0:
        other = int(rng.integers(len(node.input)))
        node.input[at], node.input[other] = node.input[other], node.input[at]
    elif how == 1:
        node.input[at] = ""
    elif how == 2:
        node.input[at] = "no_such_value"
    elif how == 3:
        del node.input[at]
    elif how == 4:
        node.input.append(_pick(rng, names))
    else:
        node.input[at] = _pick(rng, names)


def _outputs(rng, model):
    node = _pick(rng, [n for n in model.graph.node if n.output])
    if node is None:
        return
    how = int(rng.integers(4))
    if how == 0:
        node.output[0] = node.input[0] if node.input else ""
    elif how == 1:
        node.output.append("one_more")
    elif how == 2:
        del node.output[-1]
    elif model.graph.output:
        model.graph.output.append(model.graph.output[0])


def _nodes(rng, model):
    nodes = list(model.graph.node)
    if not nodes:
        return
    how = int(rng.integers(5))
    at = int(rng.integers(len(nodes)))
    if how == 0:
        del nodes[at]
    elif how == 1:
        nodes.append(nodes[at])
    elif how == 2:
        nodes.reverse()
    elif how == 3:
        names = [schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""]
        nodes[at].op_type = _pick(rng, names)
    else:
        nodes[at].domain = _pick(rng, ["ai.onnx", "com.microsoft", "ai.onnx.ml", "x"])
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _operator_set(rng, model):
    if model.opset_import:
        model.opset_import[0].version = _pick(rng, OPERATOR_SETS)


def _symbolic(rng, model):
    info = _pick(rng, model.graph.input)
    if info and info.type.tensor_type.shape.dim:
        _pick(rng, info.type.tensor_type.shape.dim).dim_param = _pick(rng, ["n", "", "batch"])


GRAPH_CHANGES = [
    _dimension,
    _initializer_dimension,
    _rank,
    _initializer_element,
    _initializer_element,
    _initializer_bytes,
    _drop_initializer,
    _type,
    _attribute_list,
    _inputs,
    _inputs,
    _outputs,
    _nodes,
    _symbolic,
]
CHANGES = [*GRAPH_CHANGES, _attribute, _attribute, _attribute, _operator_set]


def _damaged_bytes(rng, data):
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        at, how = int(rng.integers(len(data))), int(rng.integers(5))
        if how == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif how == 1:
            data[at] = int(rng.integers(256))
        elif how == 2:
            del data[at : at + int(rng.integers(1, 9))]
        elif how == 3:
            data[at:at] = rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def damaged(seed, index):
    """The bytes of the damaged model with this number, and what it is made of."""
    rng = np.random.default_rng([seed, index, 7])
    examples = sorted((ROOT / "fuzz/corpus/onnx").iterdir())
    if rng.random() < 0.3 and examples:
        source = _pick(rng, examples)
        origin, data = source.name, source.read_bytes()
    else:
        model = draw(seed, index, most_nodes=6).model
        origin, data = "random graph", model.SerializeToString()
    if rng.random() < 0.25:
        return _damaged_bytes(rng, data), f"bytes of {origin}"
    try:
        model = onnx.load_from_string(data)
    except Exception:  # protobuf's own exceptions differ by version
        return _damaged_bytes(rng, data), f"bytes of {origin}"
    done = []
    for _ in range(int(rng.integers(1, 4))):
        change = _pick(rng, CHANGES)
        try:
            change(rng, model)
            done.append(change.__name__.strip("_"))
        except (ValueError, TypeError, OverflowError):
            continue  # the value does not fit the field
    return model.SerializeToString(), f"{', '.join(done)} of {origin}"
