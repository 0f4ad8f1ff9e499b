"""Complex tensors, as calls on their real and imaginary parts that are compiled.

A complex tensor becomes a tensor of parts, `[.., 2]`: the real, then the imaginary one, as `torch.view_as_real` shows it. Transforms are calls of
`orchestrion::dft`, and all other calls are PyTorch's own, so that what stays with eager PyTorch can take part anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

_ATEN = torch.ops.aten

#: Types of parts.
_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


@torch.library.custom_op("orchestrion::dft", mutates_args=())
def dft(x: torch.Tensor, dim: int, length: int, inverse: bool, onesided: bool) -> torch.Tensor:
    """The discrete Fourier transform along a dimension of `[.., 1]` or `[.., 2]` parts, cut or filled with zeros to a length.

    Inverse ones divide by it. Of a signal that is real, `onesided` is the half of the spectrum that determines the other; with `inverse` it
    is the signal, `[.., 1]`.
    """
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    z = torch.view_as_complex(wide.contiguous()) if x.shape[-1] == 2 else wide.squeeze(-1)
    parts: torch.Tensor
    if inverse and onesided:
        parts = torch.fft.irfft(z, length, dim).unsqueeze(-1)
    else:
        transform = torch.fft.ifft if inverse else torch.fft.rfft if onesided else torch.fft.fft
        parts = torch.view_as_real(transform(z, length, dim).resolve_conj())
    return parts.to(x.dtype).contiguous()


@dft.register_fake
def _(x: torch.Tensor, dim: int, length: int, inverse: bool, onesided: bool) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = length // 2 + 1 if onesided and not inverse else length
    shape[-1] = 1 if onesided and inverse else 2
    return x.new_empty(shape)


def replace_complex(gm: GraphModule) -> None:
    """Replaces calls on complex tensors by calls on their parts, where they are known; others get complex tensors."""
    if not any(_is_complex(node) for node in gm.graph.nodes):
        return
    _Parts(gm).replace_all()
    gm.graph.eliminate_dead_code()
    gm.recompile()


def take_parts(gm: GraphModule, names: Collection[str]) -> set[str]:
    """Makes complex inputs of these names inputs of their parts, after :func:`replace_complex`: those that nothing else reads, which are given back."""
    taken = set()
    for node in gm.graph.nodes:
        if node.op != "placeholder" or node.name not in names or not _is_complex(node):
            continue
        views = [view for plain in node.users for view in plain.users]
        read = [*node.users, *views]
        if any(user.target not in (_ATEN.resolve_conj.default, _ATEN.view_as_real.default) for user in read):
            continue
        node.meta["val"] = torch.view_as_real(node.meta["val"].resolve_conj())
        for view in views:
            view.replace_all_uses_with(node)
        taken.add(node.name)
    if taken:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return taken


def _is_complex(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in _PARTS


def _reads_complex(node: Node) -> bool:
    return any(_is_complex(source) for source in node.all_input_nodes)


def _has_negative_bit(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_neg()


class _Unknown(Exception):
    """A call is not replaced."""


class _Parts:
    """A graph while its complex tensors are replaced."""

    def __init__(self, gm: GraphModule) -> None:
        self._graph = gm.graph
        known = [node.meta["val"] for node in gm.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        self._mode = detect_fake_mode(known) or nullcontext()
        #: Of tensors whose calls are replaced.
        self._parts: dict[Node, Node] = {}
        #: Of other tensors.
        self._seen: dict[Node, Node] = {}
        #: Of complex tensors that are converted real ones, these.
        self.real: dict[Node, Node] = {}
        self._trace: str | None = None

    def replace_all(self) -> None:
        for node in list(self._graph.nodes):
            if node.op != "call_function":
                continue
            if not (_is_complex(node) or _reads_complex(node) or node.target is _ATEN._neg_view.default):
                if _has_negative_bit(node):
                    # Its operand was replaced, and has no negative bit any more.
                    node.meta["val"] = self._value(node.target, node.args, node.kwargs)
                continue
            rule = _RULES.get(node.target)
            self._trace = node.meta.get("stack_trace")
            if rule is None:
                continue
            with self._graph.inserting_before(node):
                try:
                    made = rule(self, node)
                except (_Unknown, AssertionError, RuntimeError, TypeError, ValueError):
                    # A call in a form that is not known; what was added for it has no readers.
                    continue
            if _is_complex(node):
                self._parts[node] = made
            else:
                node.replace_all_uses_with(made)
        # Calls that are not replaced get complex tensors, made of the parts.
        for node, parts in self._parts.items():
            others = [user for user in node.users if user not in self._parts]
            if not others:
                continue
            with self._graph.inserting_after(parts):
                self._trace = node.meta.get("stack_trace")
                whole = self.call(_ATEN.clone.default, parts, memory_format=torch.contiguous_format)
            with self._graph.inserting_after(whole):
                joined = self.call(_ATEN.view_as_complex.default, whole)
            for user in others:
                user.replace_input_with(node, joined)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Adds a call, with what it gives."""
        node = self._graph.call_function(target, args, kwargs)
        node.meta["val"] = self._value(target, args, kwargs)
        if self._trace is not None:
            node.meta["stack_trace"] = self._trace
        return node

    def _value(self, target: Any, args: Any, kwargs: Any) -> Any:
        known_args, known_kwargs = map_arg((args, kwargs), lambda source: source.meta["val"])
        with self._mode:
            return target(*known_args, **known_kwargs)

    def of(self, node: object) -> Node:
        """The parts of a complex tensor."""
        if not isinstance(node, Node) or not _is_complex(node):
            raise _Unknown
        if node in self._parts:
            return self._parts[node]
        if node not in self._seen:
            # The tensor may be the lazy conjugate of another one.
            plain = self.call(_ATEN.resolve_conj.default, node)
            self._seen[node] = self.call(_ATEN.view_as_real.default, plain)
        return self._seen[node]

    def joined(self, real: Node, imaginary: Node | None) -> Node:
        """Parts beside each other."""
        if imaginary is None:
            imaginary = self.call(_ATEN.full_like.default, real, 0)
        return self.call(_ATEN.stack.default, [real, imaginary], -1)

    def part(self, node: object, number: int) -> Node:
        """One of the parts of a complex tensor."""
        parts = self.of(node)
        return self.call(_ATEN.select.int, parts, -1, number)

    def transformed(self, parts: Node, dims: Sequence[int], norm: int, inverse: bool) -> Node:
        """Transforms along dimensions, each normed by a code: 0 not, 1 by the root of its length, 2 by its length."""
        scale = 1.0
        for dim in dims:
            length = int(parts.meta["val"].shape[dim])
            parts = self.call(torch.ops.orchestrion.dft.default, parts, dim, length, inverse, False)
            scale *= _scale(length, norm, inverse)
        return self.scaled(parts, scale)

    def scaled(self, x: Node, scale: float) -> Node:
        return x if scale == 1.0 else self.call(_ATEN.mul.Tensor, x, scale)


def _scale(length: int, norm: int, inverse: bool) -> float:
    """What a transform is multiplied by, beside the length that inverse ones divide by."""
    return (length if inverse else 1) / (1, math.sqrt(length), length)[norm]


_Rule = Callable[[_Parts, Node], Node]


def _rank(node: object) -> int:
    assert isinstance(node, Node)
    return int(node.meta["val"].dim())


def _dims(node: object, dims: Any) -> list[int]:
    return [int(dim) % _rank(node) for dim in dims]


def _converted(parts: _Parts, node: Node) -> Node:
    source = node.args[0]
    dtype = _PARTS.get(node.meta["val"].dtype)
    if dtype is None or not isinstance(source, Node):
        raise _Unknown
    if _is_complex(source):
        return parts.call(_ATEN._to_copy.default, parts.of(source), dtype=dtype)
    real = parts.call(_ATEN._to_copy.default, source, dtype=dtype)
    parts.real[node] = real
    return parts.joined(real, None)


def _complex_transform(parts: _Parts, node: Node) -> Node:
    source, dims, norm, forward = node.args
    assert isinstance(source, Node) and isinstance(norm, int)
    dims = _dims(source, dims)
    if source in parts.real and dims:
        real = parts.real[source]
        column = parts.call(_ATEN.unsqueeze.default, real, -1)
        return parts.transformed(column, dims, norm, not forward)
    return parts.transformed(parts.of(source), dims, norm, not forward)


def _transform_of_real(parts: _Parts, node: Node) -> Node:
    source, dims, norm, onesided = node.args
    assert isinstance(source, Node) and isinstance(norm, int)
    *others, last = _dims(source, dims)
    length = int(source.meta["val"].shape[last])
    column = parts.call(_ATEN.unsqueeze.default, source, -1)
    half = parts.call(torch.ops.orchestrion.dft.default, column, last, length, False, onesided)
    return parts.transformed(parts.scaled(half, _scale(length, norm, False)), others, norm, False)


def _transform_to_real(parts: _Parts, node: Node) -> Node:
    source, dims, norm, length = node.args
    assert isinstance(norm, int) and isinstance(length, int)
    *others, last = _dims(source, dims)
    half = parts.transformed(parts.of(source), others, norm, True)
    signal = parts.call(torch.ops.orchestrion.dft.default, half, last, length, True, True)
    return parts.call(_ATEN.squeeze.dim, parts.scaled(signal, _scale(length, norm, True)), -1)


def _sum(parts: _Parts, node: Node) -> Node:
    """Sums and differences of complex tensors, and of one and a real tensor of its precision or a real number."""
    a, b = node.args
    if isinstance(b, (int, float)):
        real = parts.call(node.target, parts.part(a, 0), b, **node.kwargs)
        return parts.joined(real, parts.part(a, 1))
    both = []
    for operand in (a, b):
        if isinstance(operand, Node) and operand.meta["val"].dtype == _PARTS[node.meta["val"].dtype]:
            both.append(parts.joined(operand, None))
        else:
            both.append(parts.of(operand))
    return parts.call(node.target, *both, **node.kwargs)


def _product(parts: _Parts, node: Node) -> Node:
    a, b = node.args
    if _is_complex(a) and _is_complex(b):
        (a, c), (b, d) = ([parts.part(operand, number) for number in (0, 1)] for operand in (a, b))
        product = [[parts.call(_ATEN.mul.Tensor, x, y) for y in (b, d)] for x in (a, c)]
        real = parts.call(_ATEN.sub.Tensor, product[0][0], product[1][1])
        return parts.joined(real, parts.call(_ATEN.add.Tensor, product[0][1], product[1][0]))
    return _scaled(parts, node, a, b) if _is_complex(a) else _scaled(parts, node, b, a)


def _by_real(parts: _Parts, node: Node) -> Node:
    return _scaled(parts, node, *node.args)


def _scaled(parts: _Parts, node: Node, x: object, operand: object) -> Node:
    """A product or quotient of a complex tensor and a real number, or tensor of its precision."""
    if isinstance(operand, Node):
        if operand.meta["val"].dtype != _PARTS[node.meta["val"].dtype]:
            raise _Unknown
        operand = parts.call(_ATEN.unsqueeze.default, operand, -1)
    elif not isinstance(operand, (int, float)):
        raise _Unknown
    return parts.call(node.target, parts.of(x), operand)


def _conjugate(parts: _Parts, node: Node) -> Node:
    imaginary = parts.call(_ATEN.neg.default, parts.part(node.args[0], 1))
    return parts.joined(parts.part(node.args[0], 0), imaginary)


def _magnitude(parts: _Parts, node: Node) -> Node:
    if node.meta["val"].dtype == torch.float16:
        # Squares can be too large.
        raise _Unknown
    both = [parts.part(node.args[0], number) for number in (0, 1)]
    squares = [parts.call(_ATEN.mul.Tensor, part, part) for part in both]
    return parts.call(_ATEN.sqrt.default, parts.call(_ATEN.add.Tensor, *squares))


def _polar(parts: _Parts, node: Node) -> Node:
    magnitude, angle = node.args
    both = [parts.call(_ATEN.mul.Tensor, magnitude, parts.call(f, angle)) for f in (_ATEN.cos.default, _ATEN.sin.default)]
    return parts.joined(*both)


def _given_parts(parts: _Parts, node: Node) -> Node:
    real, imaginary = node.args
    assert isinstance(real, Node) and isinstance(imaginary, Node)
    return parts.joined(real, imaginary)


def _same(parts: _Parts, node: Node) -> Node:
    """The parts themselves."""
    return parts.of(node.args[0])


def _seen_as_complex(parts: _Parts, node: Node) -> Node:
    assert isinstance(node.args[0], Node)
    return node.args[0]


def _elementwise(parts: _Parts, node: Node) -> Node:
    return parts.call(node.target, parts.of(node.args[0]), *node.args[1:])


def _negative(parts: _Parts, node: Node) -> Node:
    """Also of a real tensor: the imaginary part of a conjugate that PyTorch has not computed is such a negative."""
    source = node.args[0]
    return parts.call(_ATEN.neg.default, parts.of(source) if _is_complex(source) else source)


def _replaced(parts: _Parts, node: Node) -> Node:
    """`copy` and `slice_scatter`: the second operand replaces the first one, or a slice of it along a dimension."""
    source, other, *rest = node.args
    rest = [number % _rank(source) if at == 0 and isinstance(number, int) else number for at, number in enumerate(rest)]
    return parts.call(node.target, parts.of(source), parts.of(other), *rest)


def _filled(parts: _Parts, node: Node) -> Node:
    size, value = node.args
    if not isinstance(value, (int, float)):
        raise _Unknown
    kwargs = {**node.kwargs, "dtype": _PARTS[node.meta["val"].dtype]}
    real = parts.call(_ATEN.full.default, size, value, **kwargs)
    return parts.joined(real, None)


def _of_size(target: Any) -> _Rule:
    """A call of a target with a tensor and a size."""

    def rule(parts: _Parts, node: Node) -> Node:
        source, size = node.args
        assert isinstance(size, (list, tuple))
        return parts.call(target, parts.of(source), [*size, 2])

    return rule


#: A view of a complex tensor may be a copy of its parts, which need not lie in memory as it did.
_reshaped = _of_size(_ATEN.reshape.default)


def _moved(parts: _Parts, node: Node) -> Node:
    source, dims = node.args
    return parts.call(node.target, parts.of(source), [*_dims(source, dims), _rank(source)])


def _of_dims(count: int, added: int = 0) -> _Rule:
    """A call whose first arguments after the tensor are so many dimensions of it, or of its result with one more."""

    def rule(parts: _Parts, node: Node) -> Node:
        source, *rest = node.args
        rank = _rank(source) + added
        given = [dim if isinstance(dim, int) else 0 for dim in [*rest[:count], *[0] * (count - len(rest))]]
        return parts.call(node.target, parts.of(source), *(dim % rank for dim in given), *rest[count:])

    return rule


def _of_dim_list(parts: _Parts, node: Node) -> Node:
    source, dims, *rest = node.args
    if not isinstance(dims, (list, tuple)) or not dims:
        raise _Unknown
    return parts.call(node.target, parts.of(source), _dims(source, dims), *rest)


def _side_by_side(added: int) -> _Rule:
    """A call on tensors and a dimension of them, or of the result with one more."""

    def rule(parts: _Parts, node: Node) -> Node:
        tensors, *rest = node.args
        assert isinstance(tensors, (list, tuple))
        dim = rest[0] if rest else 0
        assert isinstance(dim, int)
        return parts.call(node.target, [parts.of(tensor) for tensor in tensors], dim % (_rank(tensors[0]) + added))

    return rule


_RULES: dict[Any, _Rule] = {
    _ATEN._to_copy.default: _converted,
    _ATEN.complex.default: _given_parts,
    _ATEN.polar.default: _polar,
    _ATEN.view_as_complex.default: _seen_as_complex,
    _ATEN.view_as_real.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.detach.default: _same,
    _ATEN._fft_c2c.default: _complex_transform,
    _ATEN._fft_r2c.default: _transform_of_real,
    _ATEN._fft_c2r.default: _transform_to_real,
    _ATEN.add.Tensor: _sum,
    _ATEN.sub.Tensor: _sum,
    _ATEN.mul.Tensor: _product,
    _ATEN.mul.Scalar: _by_real,
    _ATEN.div.Tensor: _by_real,
    _ATEN.div.Scalar: _by_real,
    _ATEN.neg.default: _negative,
    _ATEN._neg_view.default: _negative,
    _ATEN.abs.default: _magnitude,
    _ATEN._conj.default: _conjugate,
    _ATEN.conj_physical.default: _conjugate,
    _ATEN.resolve_conj.default: _same,
    _ATEN.clone.default: _elementwise,
    _ATEN.copy.default: _replaced,
    _ATEN.slice_scatter.default: _replaced,
    _ATEN.full.default: _filled,
    _ATEN.view.default: _reshaped,
    _ATEN._unsafe_view.default: _reshaped,
    _ATEN.reshape.default: _reshaped,
    _ATEN.expand.default: _of_size(_ATEN.expand.default),
    _ATEN.permute.default: _moved,
    _ATEN.transpose.int: _of_dims(2),
    _ATEN.select.int: _of_dims(1),
    _ATEN.slice.Tensor: _of_dims(1),
    _ATEN.squeeze.dim: _of_dims(1),
    _ATEN.unsqueeze.default: _of_dims(1, added=1),
    _ATEN.squeeze.dims: _of_dim_list,
    _ATEN.sum.dim_IntList: _of_dim_list,
    _ATEN.mean.dim: _of_dim_list,
    _ATEN.flip.default: _of_dim_list,
    _ATEN.cat.default: _side_by_side(0),
    _ATEN.stack.default: _side_by_side(1),
}
