#!/usr/bin/env python3
"""`torch.compile` on a GPU beside eager PyTorch and Inductor: calls of a model on tensors in the GPU's memory.

    gpu.py [MODEL[@BATCH] ...] [--train] [--dtype float16] [--rounds N] [--json FILE]

A model is `bert-base`, `gpt2`, or one of the suite (`torchvision/NAME`, `timm/NAME`, `transformers/KIND`). Weights are random. Modes:
`eager`; `inductor`; `reduce-overhead`, Inductor with its own graphs; `captured`, Inductor's code in a CUDA graph by hand, which reads
the same tensors each time; `ours`; `ours-captured`. Each call gets a new tensor, but where it is captured. Two clocks, in microseconds:
`latency`, from a call until the host knows of the end; `throughput`, of 20 calls in a row, each. All modes by turns; medians. With --train a
call is forward, a mean of squares, and backward; nothing is captured by hand.
"""
import argparse
import copy
import json
import pathlib
import statistics
import sys
import time
import traceback

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))


def build(name, batch):
    """A model, and its inputs in order."""
    torch.manual_seed(0)
    if name in ("bert-base", "gpt2"):
        import transformers

        config = transformers.BertConfig() if name == "bert-base" else transformers.GPT2Config(use_cache=False)
        model = transformers.AutoModel.from_config(config)
        return _First(model), [torch.randint(0, 30_000, (batch, 128))]
    import models

    built = models.build(name, batch, 0)
    return built.model, list(built.inputs.values())


class _First(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids)[0]


def first(output):
    return output[0] if isinstance(output, (tuple, list)) else output


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
            first(output).float().square().mean().backward()
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


def row_of(spec, o):
    name, _, batch = spec.partition("@")
    model, inputs = build(name, int(batch or 1))
    model = model.train(o.train).cuda()
    inputs = [tensor.cuda() for tensor in inputs]
    row = {"model": spec, "errors": {}}
    with torch.set_grad_enabled(o.train):
        if not o.train:
            with torch.no_grad():
                reference = first(model(*inputs)).double()
        dtype = getattr(torch, o.dtype)
        model = model.to(dtype)
        inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
        fresh = [[tensor.clone() for tensor in inputs] for _ in range(8)]
        names = ["eager", "inductor", "reduce-overhead", "ours"] + ([] if o.train else ["captured", "ours-captured"])
        modes = []
        torch._dynamo.reset()
        for mode_name in names:
            try:
                mode = Mode(mode_name, copy.deepcopy(model), inputs, o.train)
                row[f"{mode_name}_first_s"] = round(mode.first_s, 1)
                if not o.train:
                    error = (first(mode(inputs)).double() - reference).norm() / reference.norm()
                    row["errors"][mode_name] = float(f"{error.item():.2e}")
                modes.append(mode)
            except Exception:  # noqa: BLE001 - a row of the others remains
                row[f"{mode_name}_failed"] = traceback.format_exc()[-600:]
            if mode_name == "ours":
                from orchestrion.torch import report

                row["report"] = str(report())
        found = {mode.name: ([], []) for mode in modes}
        for _ in range(o.rounds):
            for mode in modes:
                latency, throughput = measured(mode, fresh, 20)
                found[mode.name][0].extend(latency)
                found[mode.name][1].append(throughput)
    for name, (latency, throughput) in found.items():
        row[name] = {"latency": round(statistics.median(latency), 1), "throughput": round(statistics.median(throughput), 1)}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["bert-base", "torchvision/resnet50", "transformers/distilbert"])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=1e9, help="no row begins later")
    parser.add_argument("--json")
    o = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, o.dtype)
    # Each mode is an entry of the same cache.
    torch._dynamo.config.recompile_limit = 64
    rows, begin = [], time.time()
    for spec in o.models:
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


if __name__ == "__main__":
    main()
