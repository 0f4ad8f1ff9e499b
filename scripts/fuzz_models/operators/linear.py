"""Products of matrices and tensors."""

from .registry import operator


@operator("MatMul", weight=4)
def matmul(b, op):
    x = b.float((1, 4), -50, 50)
    inner = x.shape[-1]
    columns = b.choice([1, 2, 3, 5, 8, 16, 17, 31])
    if b.chance(0.15):
        y = b.new((inner,), x.dtype)
    else:
        batch = [d if b.chance(0.7) else 1 for d in x.shape[:-2]]
        if b.chance(0.6):
            batch = batch[b.int(0, len(batch)) :]
        y = b.float(
            None,
            -50,
            50,
            where=lambda v: v.dtype == x.dtype
            and v.rank >= 2
            and v.shape[-2] == inner
            and all(a == c or 1 in (a, c) for a, c in zip(v.shape[-3::-1], x.shape[-3::-1])),
            new_shape=(*batch, inner, columns),
        )
    b.node(op, [x, y])


@operator("Gemm", weight=2)
def gemm(b, op):
    x = b.float(2, -50, 50)
    transposed_x, transposed_y = b.int(0, 1), b.int(0, 1)
    rows, inner = x.shape[::-1] if transposed_x else x.shape
    columns = b.choice([1, 2, 5, 8, 16, 17, 33])
    y = b.new((columns, inner) if transposed_y else (inner, columns), x.dtype)
    bias = b.choice([None, (), (1,), (columns,), (1, columns), (rows, 1), (rows, columns)])
    if bias is not None:
        bias = b.new(bias, x.dtype)
    b.node(
        op,
        [x, y, bias],
        transA=transposed_x or None,
        transB=transposed_y or None,
        alpha=b.choice([None, 0.5, -1.25]),
        beta=b.choice([None, 0.0, 2.0]),
    )


EQUATIONS = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij,kj->ik",
    "bihd,bjhd->bhij",
    "i,j->ij",
    "ij->ji",
    "ij->i",
    "bij,bij->b",
    "ij,ij->",
    "abc,cd->abd",
    "abc,dc",
    "ij,jk,kl->il",
    "bhij,bhjd->bihd",
    "ij,i->ij",
    "bhwc,hkc->bhwk",
    "ijk->kij",
    "ij,jk",
    "...ij,...jk->...ik",
    "bn,anm,bm->ba",
]


@operator("Einsum", weight=2)
def einsum(b, op):
    equation = b.choice(EQUATIONS)
    sizes = {c: b.choice([1, 2, 3, 4, 5, 7, 12]) for c in "abcdefghijklmnopqrstuvwxyz"}
    prefix = b.shape(b.int(0, 2), 12)
    dtype, inputs = None, []
    for term in equation.split("->")[0].split(","):
        shape = tuple(sizes[c] for c in term.replace("...", ""))
        shape = prefix + shape if "..." in term else shape
        if not inputs:
            x = b.float(len(shape), -50, 50, new_shape=shape, where=lambda v: 0 not in v.shape)
            if "..." not in term:
                sizes.update(zip(term, x.shape))
            else:
                prefix = x.shape[: len(prefix)]
                sizes.update(zip(term.replace("...", ""), x.shape[len(prefix) :]))
            dtype = x.dtype
        else:
            x = b.float(len(shape), -50, 50, shape=shape, where=lambda v: v.dtype == dtype)
        inputs.append(x)
    b.node(op, inputs, equation=equation)


@operator("Det")
def determinant(b, op):
    size = b.int(1, 4)
    x = b.float(
        None,
        -4,
        4,
        where=lambda v: v.rank >= 2 and v.shape[-1] == v.shape[-2] < 6,
        new_shape=(*b.shape(b.int(0, 2), 30), size, size),
    )
    b.node(op, [x])
