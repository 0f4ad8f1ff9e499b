"""One call per case: each target with its variants of arguments and types."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator

import numpy
import torch
from torch.fx import Graph, GraphModule, Node

from . import writer

generator = torch.Generator().manual_seed(0)
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I32, I64, U8, BOOL = torch.int32, torch.int64, torch.uint8, torch.bool
FLOATS = (F32, F16, BF16, F64)
INF, NAN = float("inf"), float("nan")


def normal(*shape: int, dtype: torch.dtype = F32, scale: float = 1.0) -> torch.Tensor:
    """Normally distributed values."""
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def positive(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Values from 0.5 to 2.5."""
    return (torch.rand(shape, generator=generator) * 2 + 0.5).to(dtype)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: torch.dtype = I64) -> torch.Tensor:
    """Integers from `low` up to `high`, which is left out."""
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def bools(*shape: int) -> torch.Tensor:
    """Truth values."""
    return torch.rand(shape, generator=generator) < 0.5


def special(dtype: torch.dtype = F32) -> torch.Tensor:
    """Values at which functions are special."""
    return torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, INF, -INF, NAN, 100.0, -100.0, 1e-5], dtype=dtype)


Given = tuple[tuple[object, ...], dict[str, object]]


def given(*args: object, **kwargs: object) -> Given:
    """The arguments of a call."""
    return args, kwargs


def resolve(name: str) -> torch._ops.OpOverload:
    """The overload of this name."""
    found: object = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, torch._ops.OpOverload)
    return found


#: Attention that only GPUs have, by the kernel.
OF_GPUS = {f"aten._scaled_dot_product_{kind}_attention.default": kind for kind in ("flash", "efficient", "cudnn")}
OF_GPUS |= {f"aten._scaled_dot_product_{kind}_attention_backward.default": kind for kind in ("flash", "efficient", "cudnn")}


def arguments_of(overload: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """All arguments by the names of the schema."""
    known = {argument.name: argument.default_value for argument in overload._schema.arguments if argument.has_default_value()}
    return {**known, **dict(zip((argument.name for argument in overload._schema.arguments), args)), **kwargs}


def attended(known: dict[str, object]) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Attention in f64: the output, the logarithms `[n, h, l]`, and query, key, value and mask to differentiate by."""
    leaves = [known[name].double().requires_grad_() for name in ("query", "key", "value")]
    q, k, v = leaves
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = known.get("scale") or q.shape[-1] ** -0.5
    scores = scale * q @ k.transpose(-1, -2)
    if known.get("attn_bias") is not None:
        leaves.append(known["attn_bias"].double().requires_grad_())
        scores = scores + leaves[-1]
    if known.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=BOOL).tril(), -INF)
    empty = (scores == -INF).all(-1, keepdim=True)
    weights = torch.where(empty, 0.0, torch.where(empty, 0.0, scores).softmax(-1))
    log = torch.where(empty, 0.0, scores).logsumexp(-1).masked_fill(empty.squeeze(-1), 0.0)
    return weights @ v, log, leaves


def attention_of_gpus(overload: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
    """The results as these kernels make them: the shapes of logarithms, and states of the random generator, are theirs."""
    known, kind = arguments_of(overload, args, kwargs), OF_GPUS[str(overload)]
    output, log, leaves = attended(known)
    q = known["query"]
    if "_backward" in str(overload):
        gradients = torch.autograd.grad(output, leaves, known["grad_out_" if kind == "efficient" else "grad_out"].double())
        results = [gradient.to(leaf.dtype) for gradient, leaf in zip(gradients, (q, known["key"], known["value"], known.get("attn_bias")))]
        if kind == "efficient":
            return (*results[:3], results[3] if len(results) > 3 and known["grad_input_mask"][3] else None)
        return tuple(results[:3])
    output, log = output.detach().to(q.dtype), log.detach().float()
    state = torch.zeros((), dtype=I64)
    if kind == "efficient":
        rows = -(-log.shape[2] // 32) * 32 if known["compute_log_sumexp"] else 0
        padded = torch.full((*log.shape[:2], rows), INF)
        padded[..., : min(rows, log.shape[2])] = log[..., :rows]
        return output, padded, state, state
    if kind == "cudnn":
        return output, log.unsqueeze(-1), None, None, log.shape[2], known["key"].shape[2], state, state, None
    states = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return output, log, None, None, log.shape[2], known["key"].shape[2], *states, torch.empty(0, dtype=q.dtype)


#: The seed of the random numbers of all cases.
SEED = -5_000_000_007


def random_bits(count: int) -> numpy.ndarray:
    """64 bits of Philox4x32-10 for each position of the sequence of `SEED`."""
    words = [numpy.arange(count, dtype=numpy.uint64)] + [numpy.zeros(count, dtype=numpy.uint64) for _ in range(3)]
    keys = [SEED & 0xFFFFFFFF, SEED >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        products = [words[0] * numpy.uint64(0xD2511F53), words[2] * numpy.uint64(0xCD9E8D57)]
        (high0, low0), (high2, low2) = [(product >> numpy.uint64(32), product & numpy.uint64(0xFFFFFFFF)) for product in products]
        words = [high2 ^ words[1] ^ numpy.uint64(keys[0]), low2, high0 ^ words[3] ^ numpy.uint64(keys[1]), low0]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return words[0] | words[1] << numpy.uint64(32)


def drawn(overload: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """What the rules of random numbers give for `SEED`."""
    name, known = str(overload), arguments_of(overload, args, kwargs)
    like = known.get("input", known.get("self"))
    shape = torch.Size(known["size"]) if like is None else like.shape
    dtype = known.get("dtype") or (F32 if like is None else like.dtype)
    bits = random_bits(math.prod(shape))

    def uniform(digits: int) -> torch.Tensor:
        return torch.from_numpy((bits >> numpy.uint64(64 - digits)).astype(numpy.float64) * 0.5**digits).reshape(shape)

    if name == "aten.native_dropout.default":
        if known["train"] is False:
            return like, torch.ones(shape, dtype=BOOL)
        kept = 1.0 - known["p"]
        mask = uniform(24) < torch.tensor(kept).double()
        wide = like.to(torch.promote_types(dtype, F32))
        return (wide * mask * (1.0 / kept if kept else 0.0)).to(dtype), mask
    if name.startswith("aten.bernoulli"):
        probability = torch.tensor(known["p"]) if "p" in known else like
        return (uniform(53 if probability.dtype == F64 else 24) < probability.double()).to(dtype)
    if name.startswith("aten.randn"):
        lower = torch.from_numpy((bits & numpy.uint64(0xFFFFFFFF)).astype(numpy.float64)).reshape(shape)
        return ((-2 * ((lower + 1) * 0.5**32).log()).sqrt() * (2 * math.pi * uniform(32)).cos()).to(dtype)
    return uniform({F64: 53, F32: 24, F16: 11, BF16: 8}[dtype]).to(dtype)


def single(target: str, args: tuple[object, ...], kwargs: dict[str, object], name: str) -> dict[str, object]:
    """The case of one call."""
    graph, inputs = Graph(), []

    def place(value: object) -> object:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"x{len(inputs)}")
            node.meta["val"] = value
            inputs.append(value.clone() if value.is_contiguous() else value)
            return node
        if isinstance(value, (list, tuple)):
            return [place(item) for item in value]
        return value

    overload = resolve(target)
    node = graph.call_function(overload, tuple(place(item) for item in args), {k: place(v) for k, v in kwargs.items()})
    if target in OF_GPUS:
        result = attention_of_gpus(overload, args, kwargs)
    elif target in writer.documents.RANDOM:
        result = drawn(overload, args, kwargs)
        inputs.append(torch.tensor([SEED]))
    else:
        result = overload(*args, **kwargs)
    node.meta["val"] = result
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    outputs: list[Node | None] = []
    if isinstance(result, (tuple, list)):
        for position, value in enumerate(results):
            if not isinstance(value, torch.Tensor):
                outputs.append(None)
                continue
            item = graph.call_function(operator.getitem, (node, position))
            item.meta["val"] = value
            outputs.append(item)
    else:
        outputs.append(node)
    graph.output(tuple(outputs))
    return writer.case(name, GraphModule(torch.nn.Module(), graph), inputs, results)


def unary() -> Iterator[tuple[str, list[Given]]]:
    """Functions of one element."""
    names = "exp log erf tanh sigmoid sqrt reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh expm1 log1p"
    for name in f"{names} log2 log10 rsqrt".split():
        cases = [given(normal(2, 3, dtype=dtype)) for dtype in FLOATS] + [given(special()), given(ints(4, dtype=I32))]
        yield f"aten.{name}.default", cases
    for name in "floor ceil round trunc abs sign neg relu".split():
        whole = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.0])
        cases = [given(normal(2, 3, dtype=dtype, scale=3.0)) for dtype in FLOATS]
        yield f"aten.{name}.default", cases + [given(special()), given(whole), given(ints(4))]
    yield "aten.silu.default", [given(normal(5, dtype=dtype)) for dtype in FLOATS] + [given(special())]
    yield "aten.logical_not.default", [given(special()), given(ints(5, low=-1, high=2)), given(bools(4))]
    yield "aten.bitwise_not.default", [given(ints(5)), given(ints(5, low=0, dtype=U8)), given(bools(4))]
    for name in ("isnan", "isinf"):
        yield f"aten.{name}.default", [given(special(dtype)) for dtype in (F32, F16)] + [given(ints(3))]


def pointwise() -> Iterator[tuple[str, list[Given]]]:
    """Functions of several elements."""
    x, y = normal(2, 3), normal(3)
    for name in ("add", "sub"):
        yield f"aten.{name}.Tensor", [
            given(x, y), given(x, 1.5), given(x, 2), given(x, y, alpha=2.5), given(ints(4), ints(4), alpha=3),
            given(ints(4), normal(4)), given(normal(4, dtype=F16), normal(4, dtype=F16)),
            given(normal(4, dtype=BF16), 0.1), given(normal(4, dtype=BF16), normal(4, dtype=BF16), alpha=0.3),
            given(normal(4, dtype=F16), torch.tensor(0.7, dtype=F64)), given(ints(4, dtype=I32), torch.tensor(1.5)),
            given(ints(2, 1, dtype=I32), ints(3)), given(special(), special()),
        ] + ([given(bools(4), bools(4))] if name == "add" else [])
        yield f"aten.{name}.Scalar", [given(x, 1.5), given(ints(3), 2)]
    yield "aten.rsub.Scalar", [given(x, 1.5), given(ints(3), 2), given(normal(3, dtype=F16), 0.3, 2.0)]
    yield "aten.mul.Tensor", [
        given(x, y), given(x, 0.1), given(normal(4, dtype=BF16), 0.1), given(ints(4), normal(4)), given(ints(4), 3),
        given(bools(4), bools(4)), given(bools(4), normal(4)), given(special(), special()), given(ints(3), 2.5),
    ]
    yield "aten.mul.Scalar", [given(x, 0.1)]
    zeros = torch.tensor([1.0, -1.0, 0.0])
    yield "aten.div.Tensor", [
        given(x, y), given(x, 3.0), given(ints(4), 4), given(ints(4), ints(4, low=1)), given(zeros, torch.zeros(3)),
        given(normal(4, dtype=F16), 3.0), given(normal(4, dtype=BF16), positive(4, dtype=BF16)),
    ]
    yield "aten.div.Scalar", [given(x, 3.0), given(ints(3), 2)]
    numerators = torch.tensor([7, -7, 7, -7, 0, 6, -6])
    divisors = torch.tensor([2, 2, -2, -2, 3, 3, 3])
    floats = torch.tensor([7.5, -7.5, 7.5, -7.5, 1.0, -1.0, 0.3, INF, NAN, 0.0])
    others = torch.tensor([2.0, 2.0, -2.0, -2.0, 0.0, 0.0, 0.1, 2.0, 1.0, -3.0])
    quotients = [given(numerators, divisors), given(floats, others), given(numerators, 2), given(floats, 0.7),
                 given(floats.half(), others.half()), given(numerators.to(I32), divisors)]
    for mode in ("Tensor_mode", "Scalar_mode"):
        some = quotients if mode == "Tensor_mode" else quotients[2:4]
        yield f"aten.div.{mode}", [
            given(*args, rounding_mode=rounding) for args, _ in some for rounding in (None, "trunc", "floor")
        ]
    yield "aten.floor_divide.default", quotients[:2]
    for name in ("fmod", "remainder"):
        yield f"aten.{name}.Tensor", [quotients[0], quotients[1], quotients[4]]
        yield f"aten.{name}.Scalar", [quotients[2], quotients[3], given(floats, -2.0), given(numerators, -3)]
    yield "aten.pow.Tensor_Scalar", [
        given(special(), exponent) for exponent in (2, 3, 0.5, -1, -2, 0, 1.7, -0.5)
    ] + [given(ints(5), 3), given(ints(5, dtype=I32), 2.5), given(positive(4, dtype=F16), 3)]
    yield "aten.pow.Tensor_Tensor", [given(positive(2, 3), normal(3)), given(ints(4), ints(4, low=0, high=5))]
    yield "aten.pow.Scalar", [given(2.5, normal(4)), given(2, ints(4, low=0)), given(2, normal(4))]
    for name in ("maximum", "minimum"):
        yield f"aten.{name}.default", [
            given(special(), special().flip(0)), given(ints(4), ints(4)), given(bools(4), bools(4)), given(x, y),
        ]
    yield "aten.clamp.default", [
        given(special(), -1.0, 1.5), given(special(), None, 0.5), given(special(), 0.25), given(x, 1.0, -1.0),
        given(ints(5), -2, 3), given(ints(5), -2.5, 3.0), given(normal(4, dtype=BF16), -0.3, 0.3), given(x, NAN, 1.0),
    ]
    yield "aten.clamp.Tensor", [given(special(), normal(12), positive(12)), given(x, None, y), given(ints(3), ints(3))]
    yield "aten.clamp_min.default", [given(special(), 0.5)]
    yield "aten.clamp_max.default", [given(special(), 0.5)]
    yield "aten.hardtanh.default", [given(special()), given(special(), 0.0, 6.0), given(normal(4, dtype=F16))]
    yield "aten.elu.default", [given(special()), given(x, 1.5), given(x, 1.67, 1.05), given(x, 1.5, 2.0, 0.5),
                               given(normal(4, dtype=BF16))]
    yield "aten.gelu.default", [given(normal(5, dtype=dtype), approximate=how)
                                for dtype in FLOATS for how in ("none", "tanh")] + [given(special())]
    yield "aten.leaky_relu.default", [given(special()), given(x, 0.2), given(normal(4, dtype=F16))]
    mask = bools(2, 3)
    yield "aten.where.self", [given(mask, x, y), given(mask, x, torch.tensor(0.0)), given(mask, ints(2, 3), normal(3)),
                              given(bools(3), bools(3), bools(3))]
    yield "aten.where.ScalarSelf", [given(mask, 1.5, x)]
    yield "aten.where.ScalarOther", [given(mask, x, -INF)]
    yield "aten.where.Scalar", [given(mask, 1, 0), given(mask, 1.5, 0.0)]
    yield "aten.masked_fill.Scalar", [given(x, mask, -INF), given(ints(2, 3), mask, 5)]
    yield "aten.masked_fill.Tensor", [given(x, mask, torch.tensor(2.0))]
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield f"aten.{name}.Tensor", [given(special(), special().flip(0)), given(ints(6, low=0, high=3),
                                      ints(6, low=0, high=3)), given(ints(4), normal(4)), given(bools(4), bools(4)),
                                      given(normal(3, dtype=F16), torch.tensor(0.1, dtype=F64))]
        yield f"aten.{name}.Scalar", [given(special(), 1.0), given(ints(5), 2.5), given(ints(5), 3), given(special(), INF),
                                      given(torch.tensor([0.1, 0.2], dtype=F16), 0.1)]
    for name in ("and", "or", "xor"):
        yield f"aten.bitwise_{name}.Tensor", [given(ints(5), ints(5)), given(bools(5), bools(5)),
                                              given(ints(4, low=0, dtype=U8), ints(4))]
        yield f"aten.bitwise_{name}.Scalar", [given(ints(5), 6), given(bools(4), True)]
        yield f"aten.logical_{name}.default", [given(special(), ints(12, low=0, high=2)), given(bools(3), bools(3))]
    for name in ("addcmul", "addcdiv"):
        yield f"aten.{name}.default", [given(x, normal(3), positive(2, 1)), given(x, x, positive(2, 3), value=0.3),
                                       given(normal(4, dtype=F16), normal(4, dtype=F16), positive(4, dtype=F16))]


def views() -> Iterator[tuple[str, list[Given]]]:
    """What moves elements."""
    x = normal(2, 3, 4)
    yield "aten.view.default", [given(x, [6, 4]), given(x, [-1, 2]), given(normal(1), []), given(normal(0, 3), [3, 0])]
    yield "aten._unsafe_view.default", [given(x, [6, -1])]
    yield "aten.reshape.default", [given(x, [6, -1])]
    yield "aten.permute.default", [given(x, [2, 0, 1]), given(x, [0, -1, 1]), given(normal(), [])]
    yield "aten.transpose.int", [given(x, 0, -1), given(x, 1, 1)]
    yield "aten.t.default", [given(normal(2, 3)), given(normal(3))]
    yield "aten.expand.default", [given(normal(3, 1), [2, 3, 4]), given(normal(1, 3), [-1, 3]), given(normal(), [2])]
    yield "aten.unsqueeze.default", [given(x, 0), given(x, -1), given(normal(), 0)]
    one = normal(1, 3, 1)
    yield "aten.squeeze.default", [given(one)]
    yield "aten.squeeze.dim", [given(one, 0), given(one, 1), given(normal(), 0)]
    yield "aten.squeeze.dims", [given(one, [0, -1]), given(one, [1])]
    yield "aten.select.int", [given(x, 1, 2), given(x, -1, -1), given(ints(3), 0, 1)]
    yield "aten.slice.Tensor", [given(x, 1, 1, 3), given(x, -1, 0, 9223372036854775807, 2), given(x, 2, -3, -1),
                                given(x, 0, 2, 1), given(x), given(x, 2, 1, 100, 100), given(x, 2, None, 2)]
    yield "aten.split_with_sizes.default", [given(x, [1, 3], -1), given(x, [1, 0, 1])]
    yield "aten.split.Tensor", [given(x, 2, 1), given(x, 5, -1)]
    yield "aten.unbind.int", [given(x), given(x, -1)]
    yield "aten.diagonal.default", [given(normal(3, 4)), given(normal(3, 4), 1), given(normal(3, 4), -2),
                                    given(x, 0, 2, 0), given(normal(2, 2), 5)]
    for name in ("alias", "detach", "lift_fresh_copy", "clone", "contiguous"):
        yield f"aten.{name}.default", [given(x)]
    casts = [given(torch.tensor([0.0, 1.9, -1.9, 300.5, NAN]), dtype=BOOL), given(normal(4, scale=9.0), dtype=I64)]
    casts += [given(normal(4), dtype=dtype) for dtype in FLOATS] + [given(ints(4), dtype=dtype) for dtype in (F16, U8)]
    yield "aten._to_copy.default", casts + [given(bools(4), dtype=F32), given(x)]
    yield "prims.convert_element_type.default", [given(normal(4), F16), given(ints(4), F32)]
    yield "aten.cat.default", [given([x, normal(2, 1, 4)], 1), given([ints(2), normal(3)]), given([normal(0), x], -1),
                               given([x]), given([normal(2, dtype=F16), normal(3)])]
    yield "aten.stack.default", [given([x, x], -1), given([normal(), normal()])]
    yield "aten.repeat.default", [given(normal(2, 3), [2, 1, 3]), given(normal(3), [2]), given(normal(3), [0])]
    yield "aten.flip.default", [given(x, [0, 2]), given(x, [-1]), given(normal(1, 2), [0])]
    yield "aten.roll.default", [given(x, [1], [2]), given(x, [5, -1], [0, 1]), given(x, [3])]
    yield "aten.constant_pad_nd.default", [given(x, [1, 2], 1.5), given(x, [0, 1, -1, 2]), given(x, [-1, -2]),
                                           given(ints(3), [1, 1], 7)]
    yield "aten.slice_scatter.default", [given(x, normal(2, 2, 4), 1, 1), given(x, normal(2, 3, 2), -1, 0, 100, 2),
                                         given(x, normal(2, 0, 4), 1, 2, 2)]
    yield "aten.select_scatter.default", [given(x, normal(2, 4), 1, -1), given(ints(3), torch.tensor(7), 0, 1)]
    yield "aten.copy.default", [given(x, normal(4)), given(ints(3), normal(3, scale=5.0)), given(x, normal(2, 3, 4))]


def create() -> Iterator[tuple[str, list[Given]]]:
    """Tensors from numbers."""
    yield "aten.full.default", [given([2, 3], 1.5, dtype=F32), given([2], 7), given([], True), given([0, 2], -INF),
                                given([2], 0.1, dtype=F16)]
    for name, extra in (("full_like", (2.5,)), ("zeros_like", ()), ("ones_like", ())):
        yield f"aten.{name}.default", [given(normal(2, 3), *extra), given(normal(2), *extra, dtype=I64)]
    for name in ("zeros", "ones"):
        yield f"aten.{name}.default", [given([2, 3]), given([2], dtype=I64)]
    yield "aten.new_zeros.default", [given(normal(2), [3])]
    yield "aten.scalar_tensor.default", [given(1.5, dtype=F32), given(3, dtype=I64), given(-INF, dtype=F16)]
    yield "aten.fill.Scalar", [given(normal(2, 3), 2.5), given(ints(3), 4)]
    yield "aten.arange.default", [given(5), given(2.5), given(0)]
    yield "aten.arange.start", [given(2, 7), given(-1.5, 2.0), given(3, 3)]
    yield "aten.arange.start_step", [given(0, 10, 3), given(10, 0, -4), given(0.0, 1.0, 0.1), given(0, 5, 2, dtype=F32),
                                     given(1, 2, 0.25, dtype=F16)]
    yield "prims.iota.default", [
        given(5, start=2, step=3, dtype=dtype, device=torch.device("cpu"), requires_grad=False) for dtype in (I64, I32)
    ]


def reductions() -> Iterator[tuple[str, list[Given]]]:
    """Sums, extremes and their like."""
    x = normal(2, 3, 4)
    yield "aten.sum.default", [given(x), given(ints(3, dtype=I32)), given(bools(5)), given(normal(9, dtype=F16)),
                               given(normal(2, 0))]
    yield "aten.sum.dim_IntList", [given(x, [1]), given(x, [0, -1], True), given(x, []), given(x, None),
                                   given(ints(2, 3), [0]), given(normal(3, 9, dtype=BF16), [1]), given(x, [1], dtype=F64)]
    yield "aten.prod.default", [given(x), given(ints(3, low=1))]
    yield "aten.prod.dim_int", [given(x, 1), given(x, -1, True)]
    yield "aten.mean.default", [given(x), given(normal(0)), given(normal(9, dtype=F16))]
    yield "aten.mean.dim", [given(x, [1]), given(x, [-1, 0], True), given(x, None), given(normal(3, 9, dtype=BF16), [1])]
    yield "aten.var.correction", [given(x, [1]), given(x, [0, 2], correction=0, keepdim=True), given(x, None),
                                  given(normal(1, 3), [0]), given(normal(3, 9, dtype=F16), [1], correction=2.0)]
    yield "aten.var.dim", [given(x, [1]), given(x, [1], False, True)]
    yield "aten.var_mean.correction", [given(x, [1], correction=1), given(x, [0, 2], correction=0, keepdim=True)]
    for name in ("any", "all"):
        yield f"aten.{name}.default", [given(bools(5)), given(special()), given(bools(0)), given(torch.zeros(3))]
        yield f"aten.{name}.dim", [given(bools(3, 2), 1), given(ints(3, 2, low=0, high=2), 0, True)]
        yield f"aten.{name}.dims", [given(bools(3, 2, 2), [0, 2]), given(bools(3, 2), None)]
    yield "aten.cumsum.default", [given(x, 1), given(ints(4, dtype=I32), 0), given(bools(4), 0), given(normal(), 0),
                                  given(normal(9, dtype=BF16), -1), given(x, -1, dtype=F64)]
    yield "aten.cumprod.default", [given(x, 1), given(ints(4), 0)]
    ties = torch.tensor([[1.0, 3.0, 3.0], [NAN, 5.0, NAN]])
    for name in ("amax", "amin"):
        yield f"aten.{name}.default", [given(x, [1]), given(x, [0, -1], True), given(x), given(ties, [1]),
                                       given(ints(2, 3), [0]), given(bools(2, 3), [1])]
    for name in ("max", "min"):
        yield f"aten.{name}.default", [given(x), given(ties), given(ints(4))]
        yield f"aten.{name}.dim", [given(x, 1), given(ties, 1), given(x, -1, True), given(normal(), 0)]
    for name in ("argmax", "argmin"):
        yield f"aten.{name}.default", [given(x), given(x, 1), given(x, -1, True), given(ties, 1), given(ints(5), 0),
                                       given(x, None, True)]


def networks() -> Iterator[tuple[str, list[Given]]]:
    """Softmax, normalization, products, convolutions, pools, attention."""
    x = normal(2, 3, 4)
    for name in ("_softmax", "_log_softmax"):
        yield f"aten.{name}.default", [given(x, 1, False), given(x, -1, False), given(normal(2, 5, dtype=BF16), 1, False),
                                       given(torch.full((2, 3), -INF), 1, False), given(normal(), 0, False),
                                       given(torch.tensor([[1e4, 0.0, -INF]]), 1, False)]
    spectrum = normal(3, 6, 4, 2)
    yield "orchestrion.dft.default", [
        given(spectrum, 1, 6, False, False), given(spectrum, 2, 4, True, False), given(spectrum, 0, 5, False, False),
        given(spectrum, 1, 4, True, False), given(spectrum, 1, 10, True, True), given(spectrum, 1, 11, True, True),
        given(spectrum.half(), 2, 4, False, False), given(normal(3, 6, 1), 1, 6, False, True),
        given(normal(3, 7, 1), 1, 7, False, True), given(normal(3, 6, 1, dtype=F64), 0, 3, False, False),
    ]
    output = torch.softmax(x, 1)
    yield "aten._softmax_backward_data.default", [given(normal(2, 3, 4), output, 1, F32),
                                                  given(normal(2, 3, 4, dtype=BF16), output.bfloat16(), 1, BF16)]
    yield "aten._log_softmax_backward_data.default", [given(normal(2, 3, 4), output.log(), 1, F32)]
    yield "aten.native_layer_norm.default", [
        given(x, [4], normal(4), normal(4), 1e-5), given(x, [3, 4], None, None, 1e-3), given(x, [4], normal(4), None, 1e-5),
        given(x.bfloat16(), [4], normal(4, dtype=BF16), normal(4, dtype=BF16), 1e-5),
        given(x.half(), [4], None, None, 1e-5), given(x.bfloat16(), [4], normal(4), normal(4), 1e-5),
    ]
    y = normal(2, 4, 3, 2)
    yield "aten.native_group_norm.default", [given(y, normal(4), normal(4), 2, 4, 6, 2, 1e-5),
                                             given(y, None, None, 2, 4, 6, 4, 1e-5),
                                             given(normal(2, 4), normal(4), normal(4), 2, 4, 1, 2, 1e-5)]
    stats = (normal(4), positive(4))
    affine = (normal(4), normal(4))
    yield "aten._native_batch_norm_legit_no_training.default", [given(y, *affine, *stats, 0.1, 1e-5),
                                                                given(y, None, None, *stats, 0.1, 1e-3),
                                                                given(normal(3, 4), *affine, *stats, 0.1, 1e-5)]
    yield "aten._native_batch_norm_legit_functional.default", [given(y, *affine, *stats, True, 0.1, 1e-5),
                                                               given(y, *affine, *stats, False, 0.1, 1e-5)]
    yield "aten._native_batch_norm_legit.no_stats", [given(y, *affine, True, 0.1, 1e-5)]
    yield "aten.native_batch_norm.default", [given(y, *affine, *stats, False, 0.1, 1e-5),
                                             given(y, *affine, None, None, True, 0.1, 1e-5)]
    a, b = normal(3, 4), normal(4, 2)
    yield "aten.mm.default", [given(a, b), given(normal(3, 0), normal(0, 2)), given(a.half(), b.half()),
                              given(ints(2, 3), ints(3, 2))]
    yield "aten.bmm.default", [given(normal(2, 3, 4), normal(2, 4, 5))]
    yield "aten.addmm.default", [given(normal(2), a, b), given(normal(3, 2), a, b, beta=0.5, alpha=2.0),
                                 given(torch.full((2,), NAN), a, b, beta=0), given(normal(2, dtype=BF16), a.bfloat16(),
                                                                                   b.bfloat16())]
    yield "aten.baddbmm.default", [given(normal(2, 3, 5), normal(2, 3, 4), normal(2, 4, 5), beta=0.5)]
    yield "aten.mv.default", [given(a, normal(4))]
    yield "aten.dot.default", [given(normal(4), normal(4))]
    image, w = normal(2, 4, 5, 6), normal(6, 4, 3, 2)
    two = [
        given(image, w, normal(6), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        given(image, w, None, [2, 1], [1, 1], [1, 2], False, [0, 0], 1),
        given(image, normal(6, 2, 2, 2), None, [1, 2], [0, 1], [2, 1], False, [0, 0], 2),
        given(image, normal(4, 1, 3, 3), normal(4), [2], [1], [1], False, [0], 4),
        given(image, normal(4, 3, 3, 2), normal(3), [2, 2], [1, 0], [1, 1], True, [1, 0], 1),
        given(image, normal(4, 3, 2, 3), None, [2, 3], [0, 1], [2, 1], True, [0, 1], 2),
    ]
    line = given(normal(2, 3, 8), normal(4, 3, 3), normal(4), [3], [1], [2], False, [0], 1)
    yield "aten.convolution.default", two + [
        line, given(normal(1, 2, 3, 3, 3), normal(3, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
    ]
    backward = []
    for args, _ in two + [line]:
        result = torch.ops.aten.convolution.default(*args)
        sizes = [result.shape[1]]
        rest = (args[0], args[1], sizes, *args[3:])
        backward.append(given(normal(*result.shape), *rest, [True, True, True]))
    backward.append(given(*backward[0][0][:-1], [False, True, False]))
    yield "aten.convolution_backward.default", backward
    pools = [(3, 2, 1), (2, [], 0), ([3, 2], [2, 1], [1, 0])]
    plane = normal(2, 3, 7, 6)
    yield "aten.max_pool2d_with_indices.default", [given(plane, *pool) for pool in pools] + [
        given(plane, [2, 2], [3, 3], [1, 1], [1, 1], True), given(plane, [3, 3], [2, 2], [1, 1], [2, 1], True),
        given(normal(3, 7, 6), [2, 2]), given(normal(1, 2, 5, 5, dtype=BF16), [2, 2]),
    ]
    yield "aten.max_pool3d_with_indices.default", [given(normal(1, 2, 4, 4, 4), [2, 2, 2])]
    grads = []
    for pool in ([3, 3], [2, 2], [1, 1], [1, 1], False), ([2, 2], [3, 3], [1, 1], [1, 1], True):
        result, indices = torch.ops.aten.max_pool2d_with_indices.default(plane, *pool)
        grads.append(given(normal(*result.shape), plane, *pool, indices))
    yield "aten.max_pool2d_with_indices_backward.default", grads
    means = [given(plane, [3, 2], [2, 2], [1, 1], ceil, include, divisor)
             for ceil in (False, True) for include in (False, True) for divisor in (None, 5)]
    means += [given(plane, [2, 2]), given(normal(3, 7, 6), [3, 3], [3, 3]), given(plane, [2, 2], [3, 3], [1, 1], True),
              given(normal(1, 2, 5, 5, dtype=BF16), [2, 2])]
    yield "aten.avg_pool2d.default", means
    yield "aten.avg_pool1d.default", [given(normal(2, 3, 7), [3], [2], [1], True, False)]
    yield "aten.avg_pool3d.default", [given(normal(1, 2, 4, 5, 4), [2, 2, 2], [2, 2, 2], [1, 1, 0], True)]
    back = []
    for args, _ in means[:8] + [given(plane, [2, 2], [2, 2], [0, 0], False, True, None)]:
        result = torch.ops.aten.avg_pool2d.default(*args)
        back.append(given(normal(*result.shape), *args))
    yield "aten.avg_pool2d_backward.default", back
    yield "aten._adaptive_avg_pool2d.default", [given(plane, [1, 1]), given(plane, [3, 4]), given(plane, [7, 2]),
                                                given(normal(3, 4, 4), [2, 2]), given(plane, [9, 8])]
    yield "aten._adaptive_avg_pool3d.default", [given(normal(1, 2, 3, 4, 5), [2, 2, 2])]
    yield "aten._adaptive_avg_pool2d_backward.default", [given(normal(2, 3, 1, 1), plane), given(normal(2, 3, 7, 2), plane)]
    q, k, v = normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)
    mask = torch.zeros(3, 5).masked_fill(bools(3, 5), -INF)
    mask[:, 0] = 0.0
    attention = [given(q, k, v), given(q, k, v, 0.0, True), given(q, k, v, attn_mask=mask), given(q, k, v, scale=0.3),
                 given(k, k, v, 0.0, True), given(q.bfloat16(), k.bfloat16(), v.bfloat16())]
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    yield "aten._scaled_dot_product_flash_attention_for_cpu.default", attention
    gradients = []
    for args, kwargs in attention[:5]:
        output, log = forward(*args, **kwargs)
        rest = args[3:] if len(args) > 3 else (0.0, False)
        gradients.append(given(normal(*output.shape), *args[:3], output, log, *rest, **kwargs))
    yield "aten._scaled_dot_product_flash_attention_for_cpu_backward.default", gradients


def indexing() -> Iterator[tuple[str, list[Given]]]:
    """Elements by index."""
    x, table = normal(4, 3, 5), normal(6, 3)
    at = torch.tensor
    yield "aten.embedding.default", [given(table, at([[1, 0], [5, 1]])), given(table, at([2, 3], dtype=I32), 2),
                                     given(table, at(4)), given(table, torch.zeros(0, 2, dtype=I64))]
    yield "aten.index_select.default", [given(x, 1, at([2, 0, 2])), given(x, -1, at([1], dtype=I32)), given(x, 0, at(3))]
    yield "aten.gather.default", [given(x, 1, ints(4, 2, 5, low=0, high=3)), given(x, 0, ints(2, 3, 1, low=0, high=4)),
                                  given(x, -1, ints(1, 2, 7, low=0, high=5)), given(normal(), 0, at(0))]
    lists = [
        [at([3, -1, 0])], [None, at([[0, -1], [1, 1]])], [at([1, 2]), at([0, -3])], [at([1, 2]), None, at([4, -5])],
        [None, at([1, 2]), at([[0], [4]])], [at([0, 1], dtype=I32), at(1), at([2, 3])], [at(2)],
        [None, None, torch.zeros(0, dtype=I64)],
    ]
    yield "aten.index.Tensor", [given(x, items) for items in lists]
    yield "aten._unsafe_index.Tensor", [given(x, lists[1])]
    puts = []
    for items in lists:
        shape = torch.ops.aten.index.Tensor(x, items).shape
        puts.append(given(x, items, normal(*shape)))
        puts.append(given(x, items, normal(*shape), True))
    puts += [given(x, lists[0], torch.tensor(7.0)), given(x, [at([1, 1, 1])], normal(3, 5), True),
             given(x, [x > 0.5], torch.tensor(-1.0)), given(x, [bools(4)], torch.tensor([2.0])),
             given(normal(4, dtype=BF16), [at([1, 1, 1])], normal(3, dtype=BF16), True)]
    yield "aten.index_put.default", puts
    yield "aten._unsafe_index_put.default", [given(x, [None, at([1, 2])], normal(4, 2, 5), True)]
    yield "aten.scatter.src", [given(x, 1, at([[[2, 0]]]), normal(2, 1, 3)), given(x, 0, ints(1, 3, 5, low=0, high=4), x)]
    yield "aten.scatter.value", [given(x, 2, ints(4, 3, 1, low=0, high=5), 1.5), given(ints(4), 0, at([1, 3]), 9)]
    yield "aten.scatter_add.default", [given(x, 1, ints(4, 6, 5, low=0, high=3), normal(4, 6, 5)),
                                       given(normal(4, dtype=F16), 0, at([1, 1, 2]), normal(3, dtype=F16)),
                                       given(normal(4), 0, ints(2, 0), normal(2, 0))]
    yield "aten.scatter_reduce.two", [given(x, 1, ints(4, 6, 5, low=0, high=3), normal(4, 6, 5), how)
                                      for how in ("sum", "prod", "amax", "amin")]
    yield "aten.embedding_dense_backward.default", [given(normal(2, 3, 4), at([[1, 2, 1], [0, 5, 1]]), 6, padding, False)
                                                    for padding in (-1, 1)]


def orders() -> Iterator[tuple[str, list[Given]]]:
    """Elements by rank, by windows, and by masks."""
    x = normal(4, 3, 5)
    yield "aten.topk.default", [given(x, 2), given(x, 3, 0, False), given(special(), 4), given(torch.tensor([3, -1, 7, 0, 2]), 5, 0),
                                given(normal(4, dtype=F16), 2), given(normal(), 1), given(x, 0)]
    ties = torch.tensor([2, 1, 2, 0, 1])
    yield "aten.sort.default", [given(x, 1), given(x, -1, True), given(special()), given(bools(3)), given(normal(), 0)]
    yield "aten.sort.stable", [given(ties, stable=True), given(ties, stable=True, dim=0, descending=True)]
    yield "aten.unfold.default", [given(x, 2, 3, 1), given(x, 0, 2, 2), given(x, -2, 3, 4), given(ints(7), 0, 3, 2),
                                  given(normal(), 0, 1, 1), given(normal(), 0, 0, 2)]
    mask = torch.tensor([[True, False, True], [False, False, True]])
    yield "aten.masked_scatter.default", [given(normal(2, 3), mask, normal(4)), given(ints(2, 3), mask, ints(2, 3)),
                                          given(normal(2, 3), mask[0], normal(4)), given(normal(2), mask[1, :2], normal(0)),
                                          given(normal(3), mask, normal(6))]


def on_gpus() -> Iterator[tuple[str, list[Given]]]:
    """Calls that only GPUs have."""
    q, k, v = normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)
    mask = torch.zeros(3, 5).masked_fill(bools(3, 5), -INF)
    mask[:, 0] = 0.0
    grouped = normal(2, 4, 5, 4)
    flash = [given(q, k, v), given(k, k, v, 0.0, True), given(q, k, v, scale=0.3), given(k.half(), k.half(), v.half()),
             given(grouped, k, v)]
    yield "aten._scaled_dot_product_flash_attention.default", flash
    mask = mask.expand(2, 2, 3, 5)
    masked = {name: [
        given(q, k, v, None, False), given(k, k, v, None, True, 0.0, True), given(q, k, v, mask, False),
        given(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, False, scale=0.3)] for name in ("efficient", "cudnn")}
    # One row without keys, and rows that end where a block of the kernel does.
    lonely = mask.clone()
    lonely[:, :, 1] = -INF
    long = normal(1, 1, 32, 2)
    for calls in masked.values():
        calls += [given(q, k, v, lonely, True), given(long, long, long, None, True)]
    for name, calls in masked.items():
        yield f"aten._scaled_dot_product_{name}_attention.default", calls
    kernels = {"flash": flash, **masked}
    for name, calls in kernels.items():
        overload = resolve(f"aten._scaled_dot_product_{name}_attention.default")
        yield f"aten._scaled_dot_product_{name}_attention_backward.default", [
            case for call in calls for case in gradients_of(name, arguments_of(overload, *call))]


def gradients_of(kernel: str, known: dict[str, object]) -> Iterator[Given]:
    """Calls of the gradient of attention, with what the kernel of this name has saved."""
    known = {**known, "compute_log_sumexp": True}
    overload = resolve(f"aten._scaled_dot_product_{kernel}_attention.default")
    saved = attention_of_gpus(overload, (), known)
    operands = [known[name] for name in ("query", "key", "value")]
    gradient = normal(*saved[0].shape, dtype=saved[0].dtype)
    causal, scale, bias = known["is_causal"], known["scale"], known.get("attn_bias")
    state = [value for value in saved if isinstance(value, torch.Tensor)][2:4]
    lengths = (None, None, operands[0].shape[2], operands[1].shape[2])
    if kernel == "flash":
        yield given(gradient, *operands, *saved[:2], *lengths, 0.0, causal, *state, scale=scale)
    elif kernel == "cudnn":
        yield given(gradient, *operands, *saved[:2], *state, bias, *lengths, 0.0, causal, scale=scale)
    else:
        # Without a mask, its gradient may be asked for all the same.
        for wanted in (True, False) if bias is not None else (True,):
            yield given(gradient, *operands, bias, *saved[:2], *state, 0.0, [True, True, True, wanted], causal, scale=scale)


def random() -> Iterator[tuple[str, list[Given]]]:
    """Random numbers of one seed."""
    x = normal(3, 5, 7)
    yield "aten.native_dropout.default", [
        *[given(x.to(dtype), 0.3, True) for dtype in FLOATS], given(x, 0.0, True), given(x, 1.0, True), given(x, 0.5, None),
        given(x, 0.5, False), given(normal(), 0.5, True), given(normal(2, 0), 0.5, True), given(special(), 0.5, True)]
    for name in ("rand", "randn"):
        yield f"aten.{name}.default", [given([4, 5]), given([3], dtype=F64), given([])]
        yield f"aten.{name}_like.default", [given(x.to(dtype)) for dtype in FLOATS] + [given(x, dtype=F16)]
    probabilities = torch.tensor([[0.0, 1.0, 0.5], [0.25, 0.75, 0.01]])
    yield "aten.bernoulli.default", [given(probabilities.to(dtype)) for dtype in FLOATS]
    yield "aten.bernoulli.p", [given(x, 0.3), given(ints(20), 0.5), given(x.half(), 0.0), given(x, 1.0), given(bools(9), 0.5)]


FAMILIES: list[Callable[[], Iterator[tuple[str, list[Given]]]]] = [
    unary, pointwise, views, create, reductions, networks, indexing, orders, on_gpus, random,
]


def cases(only: str) -> dict[str, list[dict[str, object]]]:
    """The cases of each target."""
    found: dict[str, list[dict[str, object]]] = {}
    for family in FAMILIES:
        for target, calls in family():
            if only and only not in target:
                continue
            found[target] = [single(target, *call, f"{position}") for position, call in enumerate(calls)]
    return found
