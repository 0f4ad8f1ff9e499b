#!/usr/bin/env python3
"""`torch.compile` on a CPU beside eager PyTorch and Inductor, in f32: latency of a call.

    cpu.py [MODEL[@BATCH] ...] [--sample SEED,EACH] [--train] [--threads N] [--rounds N] [--json FILE]

A model is one of the suite: `torchvision/NAME`, `timm/NAME`, `transformers/KIND`. With --sample EACH of every stratum of the suite are drawn by
a seed, of batch 1. Weights are random. Modes: `eager`; `inductor`; `inductor-frozen`, with Inductor's freezing; `ours`; `ours-frozen`, with
the option `freeze`. All modes in turns; medians of calls of at least 100 ms in each round. With --train a call is forward, a mean of
squares, and backward, and nothing is frozen.
"""
import argparse
import copy
import json
import pathlib
import statistics
import sys
import time
import traceback

import orchestrion.torch  # noqa: F401 - the backend
import torch
import torch._inductor.config as inductor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))
import draw  # noqa: E402
import models  # noqa: E402

TURN_S = 0.1
PEERS = ("eager", "inductor", "inductor-frozen")


def first(output):
    """The first tensor of an output."""
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output


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
        self.output = first(self()).detach().double()
        self.first_s = time.perf_counter() - start
        inductor.freezing = False
        self()

    def __call__(self):
        output = self._call(*self._inputs)
        if self._train:
            self._model.zero_grad(set_to_none=True)
            first(output).square().mean().backward()
        return output

    def turn_ms(self):
        """Times of calls."""
        times = []
        while not times or sum(times) < 1e3 * TURN_S:
            start = time.perf_counter()
            self()
            times.append(1e3 * (time.perf_counter() - start))
        return times


def row_of(spec, o):
    name, _, batch = spec.partition("@")
    built = models.build(name, int(batch or 1), 0)
    model, inputs = built.model.train(o.train), list(built.inputs.values())
    row = {"model": spec, "ms": {}, "first_s": {}, "errors": {}}
    with torch.set_grad_enabled(o.train):
        if not o.train:
            wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
            reference = first(copy.deepcopy(model).double()(*wide))
        modes = []
        for mode_name in ("eager", "inductor", "ours") if o.train else (*PEERS, "ours", "ours-frozen"):
            try:
                mode = Mode(mode_name, copy.deepcopy(model), inputs, o.train)
            except Exception:  # noqa: BLE001 - a row of the others remains
                row[f"{mode_name}_failed"] = traceback.format_exc()[-600:]
                continue
            row["first_s"][mode_name] = round(mode.first_s, 1)
            if not o.train:
                error = (mode.output - reference).abs().max() / reference.abs().max()
                row["errors"][mode_name] = float(f"{error.item():.1e}")
            modes.append(mode)
        found = {mode.name: [] for mode in modes}
        for _ in range(o.rounds):
            for mode in modes:
                found[mode.name].extend(mode.turn_ms())
    row["ms"] = {name: round(statistics.median(times), 3) for name, times in found.items()}
    best = {mode: min(row["ms"][peer] for peer in peers if peer in row["ms"])
            for mode, peers in (("ours", PEERS[:2]), ("ours-frozen", PEERS)) if mode in row["ms"]}
    row["ratios"] = {mode: round(peer / row["ms"][mode], 2) for mode, peer in best.items()}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["torchvision/resnet50", "transformers/bert"])
    parser.add_argument("--sample", metavar="SEED,EACH")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=1e9, help="no row begins later")
    parser.add_argument("--json")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    specs = o.models
    if o.sample:
        seed, each = map(int, o.sample.split(","))
        specs = [f"{row.model}@{row.batch}" for row in draw.stratified(seed, each, batch=1)]
    rows, begin = [], time.time()
    for spec in specs:
        if time.time() - begin > o.limit_s:
            print("not started:", spec)
            continue
        try:
            rows.append(row_of(spec, o))
        except Exception:  # noqa: BLE001 - other rows remain
            rows.append({"model": spec, "failed": traceback.format_exc()[-800:]})
        print(json.dumps(rows[-1]), flush=True)
        if o.json:
            pathlib.Path(o.json).write_text(json.dumps(rows, indent=1))
    for mode in ("ours", "ours-frozen"):
        ratios = [row["ratios"][mode] for row in rows if mode in row.get("ratios", {})]
        if ratios:
            print(mode, "geometric mean of", len(ratios), round(statistics.geometric_mean(ratios), 2), "least", min(ratios))


if __name__ == "__main__":
    main()
