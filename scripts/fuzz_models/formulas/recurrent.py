"""Recurrent layers with all activations without parameters, sequence lengths and clip; the evaluator has only the defaults."""

import numpy as np
from onnx.reference.op_run import OpRun

ACTIVATIONS = {
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
}


class _Layer(OpRun):
    """Runs `cell` over time, in each direction. Other operands than x, w, r and the lengths are zeros where left out."""

    gates = 1
    defaults = ("Tanh",)

    def _run(
        self,
        x,
        w,
        r,
        b=None,
        lengths=None,
        h=None,
        c=None,
        p=None,
        activations=None,
        activation_alpha=None,
        activation_beta=None,
        clip=None,
        direction=None,
        hidden_size=None,
        layout=None,
        **more,
    ):
        if layout or activation_alpha or activation_beta:
            raise NotImplementedError("layout 1, parameters of activations")
        steps, batch, _ = x.shape
        directions, hidden = r.shape[0], r.shape[2]
        zeros = lambda array, *shape: np.zeros(shape) if array is None else array.astype(np.float64)  # noqa: E731
        b, h = zeros(b, directions, 2 * self.gates * hidden), zeros(h, directions, batch, hidden)
        c, p = zeros(c, directions, batch, hidden), zeros(p, directions, 3 * hidden)
        lengths = np.full(batch, steps) if lengths is None else lengths
        names = list(activations or self.defaults * directions)
        y = np.zeros((steps, directions, batch, hidden))
        last_h, last_c = np.zeros_like(h), np.zeros_like(c)
        clipped = (lambda v: np.clip(v, -clip, clip)) if clip else (lambda v: v)
        for d in range(directions):
            functions = [ACTIVATIONS[n] for n in names[d * len(self.defaults) : (d + 1) * len(self.defaults)]]
            weights = [a[d].astype(np.float64) for a in (w, r, b, p)]
            for n in range(batch):
                state = (h[d, n], c[d, n])
                times = range(int(lengths[n]))
                for t in reversed(times) if direction == "reverse" or d == 1 else times:
                    state = self.cell(x[t, n].astype(np.float64), state, weights, functions, clipped, more)
                    y[t, d, n] = state[0]
                last_h[d, n], last_c[d, n] = state
        return tuple(a.astype(x.dtype) for a in (y, last_h, last_c)[: max(len(self.onnx_node.output), 1)])


class RNN(_Layer):
    """`f(w x + r h + b)`."""

    def cell(self, x, state, weights, functions, clipped, more):
        w, r, b, _ = weights
        h, c = state
        return functions[0](clipped(w @ x + r @ h + b.reshape(2, -1).sum(0))), c


class GRU(_Layer):
    """Gates z, r and the new h."""

    gates = 3
    defaults = ("Sigmoid", "Tanh")

    def cell(self, x, state, weights, functions, clipped, more):
        (w, r, b, _), (h, c), (f, g) = weights, state, functions
        (wz, wr, wh), (rz, rr, rh) = np.split(w @ x, 3), np.split(r, 3)
        bz, br, bh, cz, cr, ch = np.split(b, 6)
        update, reset = f(clipped(wz + rz @ h + bz + cz)), f(clipped(wr + rr @ h + br + cr))
        inner = reset * (rh @ h + ch) if more.get("linear_before_reset") else rh @ (reset * h) + ch
        return (1 - update) * g(clipped(wh + inner + bh)) + update * h, c


class LSTM(_Layer):
    """Gates i, o, f and the new c, with peepholes."""

    gates = 4
    defaults = ("Sigmoid", "Tanh", "Tanh")

    def cell(self, x, state, weights, functions, clipped, more):
        (w, r, b, p), (h, c), (f, g, k) = weights, state, functions
        i, o, forget, new = np.split(w @ x + r @ h + b.reshape(2, -1).sum(0), 4)
        pi, po, pf = np.split(p, 3)
        i, forget = f(clipped(i + pi * c)), f(clipped(forget + pf * c))
        if more.get("input_forget"):
            forget = 1 - i
        c = forget * c + i * g(clipped(new))
        return f(clipped(o + po * c)) * k(c), c
