#!/usr/bin/env python3
"""Start in a new process with a warm cache: `orchestrion.load`, and the first call of `torch.compile`.

    warm.py [--models resnet50 bert-base] [--rounds N] [--folder FOLDER]

Each figure is that of a process of its own, imports aside; the median of N rounds in turns. Wall time says what a user waits for on an
idle machine, CPU time what is computed, on a busy one too. Weights are random. `FOLDER` keeps executables and kernels.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def model_of(name):
    import torch

    torch.manual_seed(0)
    if name == "resnet50":
        import torchvision

        return torchvision.models.resnet50(weights=None).eval(), (torch.randn(1, 3, 224, 224),)
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()).eval(), (torch.randint(0, 30_000, (1, 128)),)


def clocks():
    """Wall time, and CPU time with that of compilers that were called."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def load(name, folder):
    """Seconds of loading, and of the first run."""
    import numpy
    import orchestrion

    inputs = {"resnet50": numpy.zeros((1, 3, 224, 224), numpy.float32), "bert-base": numpy.zeros((1, 128), numpy.int64)}
    start = clocks()
    executable = orchestrion.load(folder / f"{name}.orc")
    loaded = clocks()
    executable(inputs[name])
    return {"load": [b - a for a, b in zip(start, loaded)], "run": [b - a for a, b in zip(loaded, clocks())]}


def first_call(name, backend):
    """Seconds of the first call."""
    import torch
    from orchestrion.torch import backend as ours

    model, args = model_of(name)
    compiled = torch.compile(model, backend=ours if backend == "orchestrion" else backend)
    # What Dynamo and AOTAutograd import at their first use is the same for all.
    torch.compile(lambda x: x + 1, backend=ours)(torch.ones(3))
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(3))
    torch.compiler.reset()
    with torch.no_grad():
        start = clocks()
        compiled(*args)
        return {"first": [b - a for a, b in zip(start, clocks())]}


def prepare(name, folder):
    """Fills the cache and writes the executable."""
    import orchestrion.torch as ot

    model, args = model_of(name)
    if not (folder / f"{name}.orc").exists():
        ot.export(model, args).save(folder / f"{name}.orc")
    first_call(name, "orchestrion")
    return {}


def child(command, folder):
    """What a process of its own measures."""
    environment = {**os.environ, "ORCHESTRION_CACHE": str(folder / "cache")}
    text = subprocess.run([sys.executable, __file__, "--folder", str(folder), "--child", *command],
                          env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "bert-base"], choices=["resnet50", "bert-base"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "orchestrion-warm")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, name, *rest = args.child
        found = {"prepare": lambda: prepare(name, args.folder), "load": lambda: load(name, args.folder),
                 "first": lambda: first_call(name, *rest)}[what]()
        print(json.dumps(found))
        return
    (args.folder / "cache").mkdir(parents=True, exist_ok=True, mode=0o700)
    args.folder.chmod(0o700)
    print("| model | what | wall s | CPU s |\n|---|---|---|---|")
    for name in args.models:
        child(["prepare", name], args.folder)
        kinds = {"`orchestrion.load`": (["load", name], "load"), "first run after it": (["load", name], "run"),
                 "first call, `orchestrion`": (["first", name, "orchestrion"], "first"),
                 "first call, `aot_eager`": (["first", name, "aot_eager"], "first")}
        times = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind, (command, key) in kinds.items():
                times[kind].append(child(command, args.folder)[key])
        for kind, found in times.items():
            wall, cpu = (statistics.median(column) for column in zip(*found))
            print(f"| {name} | {kind} | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
