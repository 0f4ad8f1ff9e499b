#!/usr/bin/env python3
"""`torch.compile` on a CPU beside eager PyTorch and Inductor: latency of a call.

    cpu.py [MODEL[@BATCH] ...] [--sample SEED,EACH] [--train] [--dtype float32] [--threads N] [--rounds N] [--json FILE]

A model is `bert-base`, `gpt2`, or one of the suite: `torchvision/NAME`, `timm/NAME`, `transformers/KIND`. With --sample EACH of every
stratum of the suite are drawn by a seed, of batch 1. Weights are random. Modes: `eager`; `inductor`; `inductor-frozen`, with Inductor's freezing; `ours`; `ours-frozen`, with
the option `freeze`. All modes in turns; medians of calls of at least 100 ms in each round. With --train a call is forward, a mean of
squares, and backward, and nothing is frozen.
"""
import copy
import statistics
import time

import orchestrion.torch  # noqa: F401 - the backend
import rows
import torch
import torch._inductor.config as inductor

TURN_S = 0.1
PEERS = ("eager", "inductor", "inductor-frozen")


def compiled(name, model):
    """A model as a mode calls it."""
    if name == "eager":
        return model
    if name.startswith("inductor"):
        return torch.compile(model, dynamic=False)
    options = {"freeze": name.endswith("frozen")}
    return torch.compile(model, dynamic=False, backend="orchestrion", options=options)


class Mode:
    """A way to call a model on its inputs."""

    def __init__(self, name, model, inputs, train):
        self.name, self._model, self._inputs, self._train = name, model, inputs, train
        torch._dynamo.reset()
        inductor.freezing = name == "inductor-frozen"
        self._call = compiled(name, model)
        start = time.perf_counter()
        self.output = rows.first(self()).detach()
        self.first_s = time.perf_counter() - start
        inductor.freezing = False
        self()

    def __call__(self):
        output = self._call(*self._inputs)
        if self._train:
            self._model.zero_grad(set_to_none=True)
            rows.first(output).square().mean().backward()
        return output

    def turn_ms(self):
        """Times of calls."""
        times = []
        while not times or sum(times) < 1e3 * TURN_S:
            start = time.perf_counter()
            self()
            times.append(1e3 * (time.perf_counter() - start))
        return times


def row_of(row, options):
    model, inputs = rows.model_of(row["model"])
    model = model.train(options.train)
    if not options.train:
        wide = rows.cast(copy.deepcopy(model), inputs, "float64")
        with torch.no_grad():
            reference = rows.first(wide[0](*wide[1]))
    model, inputs = rows.cast(model, inputs, options.dtype)
    with torch.set_grad_enabled(options.train):
        names = ("eager", "inductor", "ours") if options.train else (*PEERS, "ours", "ours-frozen")
        modes = rows.made(row, names, lambda name: Mode(name, copy.deepcopy(model), inputs, options.train))
        found = {mode.name: [] for mode in modes}
        for _ in range(options.rounds):
            for mode in modes:
                found[mode.name].extend(mode.turn_ms())
    if not options.train:
        row["errors"] = {mode.name: rows.error(mode.output, reference) for mode in modes}
    row["first_s"] = {mode.name: round(mode.first_s, 1) for mode in modes}
    row["ms"] = {name: round(statistics.median(times), 3) for name, times in found.items()}
    best = {mode: min(row["ms"][peer] for peer in peers if peer in row["ms"])
            for mode, peers in (("ours", PEERS[:2]), ("ours-frozen", PEERS)) if mode in row["ms"]}
    row["ratios"] = {mode: round(peer / row["ms"][mode], 2) for mode, peer in best.items()}


def main():
    parser = rows.parser(__doc__, ["torchvision/resnet50", "transformers/bert"], "float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = rows.measure(options, row_of)
    for mode in ("ours", "ours-frozen"):
        ratios = [row["ratios"][mode] for row in found if mode in row.get("ratios", {})]
        if ratios:
            print(mode, "geometric mean of", len(ratios), round(statistics.geometric_mean(ratios), 2), "least", min(ratios))


if __name__ == "__main__":
    main()
