#!/usr/bin/env python3
"""`torch.compile` on a GPU beside eager PyTorch and Inductor: calls of a model on tensors in the GPU's memory.

    gpu.py [MODEL[@BATCH] ...] [--sample SEED,EACH] [--train] [--dtype float16] [--rounds N] [--json FILE]

A model is `bert-base`, `gpt2`, or one of the suite (`torchvision/NAME`, `timm/NAME`, `transformers/KIND`); with --sample EACH of every stratum
of the suite are drawn by a seed, of batch 1. Weights are random. Modes:
`eager`; `inductor`; `reduce-overhead`, Inductor with its own graphs; `captured`, Inductor's code in a CUDA graph by hand, which reads
the same tensors each time; `ours`; `ours-captured`. Each call gets a new tensor, but where it is captured. Two clocks, in microseconds:
`latency`, from a call until the host knows of the end; `throughput`, of 20 calls in a row, each. All modes by turns; medians. With --train a
call is forward, a mean of squares, and backward; nothing is captured by hand.
"""
import copy
import statistics
import time

import orchestrion.torch
import rows
import torch

# Calls before any is measured: Orchestrion chooses how it launches a graph on the first 80 or so.
SETTLING_CALLS = 120


class Mode:
    """A way to call a model."""

    def __init__(self, name, model, inputs, train):
        self.name, self._model, self._train, self._graph = name, model, train, None
        backends = {
            "eager": lambda: model,
            "inductor": lambda: torch.compile(model, dynamic=False),
            "reduce-overhead": lambda: torch.compile(model, dynamic=False, mode="reduce-overhead"),
            "captured": lambda: torch.compile(model, dynamic=False),
            "ours": lambda: torch.compile(model, dynamic=False, backend="orchestrion"),
            "ours-captured": lambda: torch.compile(model, dynamic=False, backend="orchestrion"),
        }
        self._call = backends[name]()
        start = time.perf_counter()
        for _ in range(4):
            self(inputs)
        torch.cuda.synchronize()
        self.first_s = time.perf_counter() - start
        for _ in range(SETTLING_CALLS):
            self(inputs)
        if name.endswith("captured"):
            self._inputs = [tensor.clone() for tensor in inputs]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._call(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._output = self._call(*self._inputs)
            self._graph = graph

    def __call__(self, inputs):
        if self._graph is not None:
            self._graph.replay()
            return self._output
        if self.name == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        output = self._call(*inputs)
        if self._train:
            for parameter in self._model.parameters():
                parameter.grad = None
            rows.first(output).float().square().mean().backward()
        return output


def measured(mode, fresh, calls):
    """Latency and throughput of calls, in microseconds."""
    latency = []
    for number in range(calls):
        inputs = fresh[number % len(fresh)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        mode(inputs)
        torch.cuda.synchronize()
        latency.append((time.perf_counter() - start) * 1e6)
    start = time.perf_counter()
    for number in range(20):
        mode(fresh[number % len(fresh)])
    torch.cuda.synchronize()
    return latency, (time.perf_counter() - start) * 1e6 / 20


def row_of(row, options):
    model, inputs = rows.model_of(row["model"])
    model = model.train(options.train).cuda()
    inputs = [tensor.cuda() for tensor in inputs]
    with torch.set_grad_enabled(options.train):
        if not options.train:
            reference = rows.first(model(*inputs)).double()
        model, inputs = rows.cast(model, inputs, options.dtype)
        fresh = [[tensor.clone() for tensor in inputs] for _ in range(8)]
        names = ["eager", "inductor", "reduce-overhead", "ours"] + ([] if options.train else ["captured", "ours-captured"])
        torch._dynamo.reset()
        modes = rows.made(row, names, lambda name: Mode(name, copy.deepcopy(model), inputs, options.train))
        if not options.train:
            row["errors"] = {mode.name: rows.error(mode(inputs), reference) for mode in modes}
        found = {mode.name: ([], []) for mode in modes}
        for _ in range(options.rounds):
            for mode in modes:
                latency, throughput = measured(mode, fresh, 20)
                found[mode.name][0].extend(latency)
                found[mode.name][1].append(throughput)
    row["report"] = str(orchestrion.torch.report())
    row["first_s"] = {mode.name: round(mode.first_s, 1) for mode in modes}
    for name, (latency, throughput) in found.items():
        row[name] = {"latency": round(statistics.median(latency), 1), "throughput": round(statistics.median(throughput), 1)}


def print_means(found):
    """Ratios of calls to the best of PyTorch's modes, and of what was captured."""
    for ours, peers in (("ours", ("eager", "inductor", "reduce-overhead")), ("ours-captured", ("captured",))):
        for clock in ("latency", "throughput"):
            whole = [row for row in found if all(name in row for name in (ours, *peers))]
            ratios = {row["model"]: min(row[peer][clock] for peer in peers) / row[ours][clock] for row in whole}
            if ratios:
                least = min(ratios, key=ratios.get)
                mean = statistics.geometric_mean(ratios.values())
                print(f"{ours}, {clock}: geometric mean of {len(ratios)} {mean:.2f}, least {ratios[least]:.2f} ({least})")


def main():
    options = rows.parser(__doc__, ["bert-base", "torchvision/resnet50", "transformers/distilbert"], "float16").parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, options.dtype)
    # Each mode is an entry of the same cache.
    torch._dynamo.config.recompile_limit = 64
    print_means(rows.measure(options, row_of))


if __name__ == "__main__":
    main()
