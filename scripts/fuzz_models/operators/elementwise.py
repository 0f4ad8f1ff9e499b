"""Operators that work element by element, with broadcasting."""

import numpy as np
from onnx import TensorProto, helper

from ..graph import FLOATS, INTS, SMALL_INTS, Reject
from .registry import operator

# Ranges in which functions of one float are defined and well conditioned.
RANGES = {
    "Exp": (-8, 5),
    "Log": (0.01, None),
    "Sqrt": (0, None),
    "Reciprocal": (0.05, None),
    "Tan": (-1.3, 1.3),
    "Asin": (-0.98, 0.98),
    "Acos": (-0.98, 0.98),
    "Sinh": (-5, 5),
    "Cosh": (-5, 5),
    "Acosh": (1.05, None),
    "Atanh": (-0.95, 0.95),
    "Sin": (-50, 50),
    "Cos": (-50, 50),
}


@operator("Exp", "Log", "Sqrt", "Reciprocal", "Tan", "Asin", "Acos", "Sinh", "Cosh", "Acosh", "Atanh", "Sin", "Cos")
@operator(
    "Atan", "Asinh", "Erf", "Floor", "Ceil", "Round", "Softsign", "Softplus", "Sigmoid", "Tanh", "HardSwish", "Relu"
)
@operator("Mish", since=18)
def unary(b, op):
    b.node(op, [b.float(None, *RANGES.get(op, (None, None)))])


@operator("Abs", "Neg", "Sign", "Identity")
def unary_of_numbers(b, op):
    b.node(op, [b.float() if b.chance(0.7) else b.tensor(INTS)])


@operator("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")
def with_alpha(b, op):
    b.node(op, [b.float()], alpha=b.uniform(0.1, 2.0) if b.chance(0.7) else None)


@operator("Selu")
def selu(b, op):
    more = {"alpha": b.uniform(0.5, 2.0), "gamma": b.uniform(0.5, 2.0)} if b.chance(0.5) else {}
    b.node(op, [b.float()], **more)


@operator("HardSigmoid")
def hard_sigmoid(b, op):
    more = {"alpha": b.uniform(0.1, 0.5), "beta": b.uniform(0.2, 0.8)} if b.chance(0.5) else {}
    b.node(op, [b.float()], **more)


@operator("Shrink")
def shrink(b, op):
    b.node(op, [b.float()], lambd=b.uniform(0.1, 1.0), bias=b.uniform(-0.5, 0.5))


@operator("Gelu", since=20)
def gelu(b, op):
    b.node(op, [b.float()], approximate=b.choice([None, "none", "tanh"]))


@operator("IsNaN", "IsInf")
def classify(b, op):
    more = {}
    if op == "IsInf" and b.chance(0.4):
        more = {"detect_negative": b.int(0, 1), "detect_positive": b.int(0, 1)}
    b.node(op, [b.float()], **more)


@operator("Clip")
def clip(b, op):
    x = b.float() if b.chance(0.75) else b.tensor(INTS + ("int8", "uint8"))
    bounds = sorted([b.int(0, 3) if x.dtype.startswith("uint") else b.int(-3, 3) for _ in range(2)])
    low, high = (b.constant(np.array(v, x.dtype)) if b.chance(0.75) else None for v in bounds)
    b.node(op, [x, low, high])


@operator("Add", "Sub", "Mul", weight=3)
def arithmetic(b, op):
    x = b.float() if b.chance(0.8) else b.tensor(INTS)
    y = x if b.chance(0.04) else b.like(x)
    b.node(op, [x, y] if b.chance(0.7) else [y, x])


@operator("Div", weight=1.5)
def divide(b, op):
    x = b.float() if b.chance(0.8) else b.tensor(INTS)
    divisor = b.like(x, 0.1 if x.dtype in FLOATS else 1)
    b.node(op, [x, divisor])


@operator("Pow")
def power(b, op):
    if b.chance(0.5):
        x = b.float(None, -6, 6)
        exponent = b.constant(np.array(b.choice([2, 3, 1, 0]), b.choice([x.dtype, "int64", "int32"])))
    else:
        x = b.float(None, 0.2, 6)
        exponent = b.like(x, -2.5, 2.5)
    b.node(op, [x, exponent])


@operator("Mod")
def modulo(b, op):
    if b.chance(0.5):
        x = b.float()
        b.node(op, [x, b.like(x, 0.3)], fmod=1)
    else:
        x = b.tensor(INTS + ("int8", "uint8", "int16"))
        b.node(op, [x, b.like(x, 1)], fmod=b.choice([None, 0, 1]))


@operator("Min", "Max", "Sum", "Mean")
def variadic(b, op):
    x = b.float() if op in ("Sum", "Mean") or b.chance(0.7) else b.tensor(INTS)
    b.node(op, [x] + [b.like(x) for _ in range(b.int(0, 3))])


@operator("PRelu")
def prelu(b, op):
    x = b.float()
    slope = [d if b.chance(0.6) else 1 for d in x.shape]
    b.node(op, [x, b.new(slope[b.int(0, len(slope)) :], x.dtype, -1, 1)])


@operator("Equal", "Greater", "Less")
@operator("GreaterOrEqual", "LessOrEqual")
def comparison(b, op):
    x = b.float() if b.chance(0.6) else b.tensor(INTS + ("bool",) * (op == "Equal"))
    b.node(op, [x, b.like(x)])


def boolean(b):
    return b.tensor(("bool",))


@operator("And", "Or", "Xor")
def logic(b, op):
    x = boolean(b)
    b.node(op, [x, b.like(x)])


@operator("Not")
def negation(b, op):
    b.node(op, [boolean(b)])


@operator("Where", weight=2)
def where(b, op):
    x = b.float() if b.chance(0.7) else b.tensor(INTS + ("uint8",))
    y = b.like(x)
    condition = b.like(x, dtype="bool")
    b.node(op, [condition, x, y] if b.chance(0.7) else [condition, y, x])


@operator("BitShift")
def shift(b, op):
    x = b.tensor(("uint8", "uint32", "uint64"))
    b.node(op, [x, b.like(x, 0, 5)], direction=b.choice(["LEFT", "RIGHT"]))


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor", since=18)
def bitwise(b, op):
    x = b.tensor(INTS + SMALL_INTS)
    b.node(op, [x, b.like(x)])


@operator("BitwiseNot", since=18)
def complement(b, op):
    b.node(op, [b.tensor(INTS + ("int8", "uint8", "int16"))])


CAST_TARGETS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "bool": TensorProto.BOOL,
    "uint32": TensorProto.UINT32,
}


def castable(value, target):
    """Whether a cast is defined: floats that an integer type does not hold convert to anything."""
    if value.dtype not in FLOATS or target in FLOATS + ("bool",) or not value.array.size:
        return True
    info, array = np.iinfo(target), value.array.astype(np.float64)
    return value.finite() and array.min() > max(info.min, -(2**20)) - 0.5 and array.max() < min(info.max, 2**20)


@operator("Cast", weight=2)
def cast(b, op):
    x = b.float() if b.chance(0.5) else b.tensor(INTS + SMALL_INTS + ("bool",))
    target = b.choice(list(CAST_TARGETS))
    if not castable(x, target):
        raise Reject
    b.node(op, [x], to=CAST_TARGETS[target])


@operator("CastLike", since=15)
def cast_like(b, op):
    x = b.float() if b.chance(0.6) else b.tensor(INTS + ("bool",))
    y = b.tensor(FLOATS + INTS)
    if not castable(x, y.dtype):
        raise Reject
    b.node(op, [x, y])


@operator("Dropout")
def dropout(b, op):
    b.node(op, [b.float()], outputs=b.int(1, 2))


@operator("Bfloat16RoundTrip")
def bfloat16(b, _):
    """A value rounded to bf16, and back."""
    x = b.tensor(("float32",))
    inner, name = b.name("t"), b.name("t")
    b.emit(
        [
            helper.make_node("Cast", [x.name], [inner], to=TensorProto.BFLOAT16),
            helper.make_node("Cast", [inner], [name], to=TensorProto.FLOAT),
        ],
        [x],
        [name],
    )


@operator("SharedChain", weight=0.15)
def shared_chain(b, _):
    """Each node reads the one before it twice: 2^n paths, n nodes."""
    x = b.tensor(("float32",), None, -1, 1)
    op = b.choice(["Mul", "Max", "Mean"])
    for _ in range(b.int(3, 24)):
        x = b.node(op, [x, x])
