#!/usr/bin/env python3
"""How far modelled times of kernels are from measured ones, over models of the suite.

    model_error.py [--target cpu|cuda] [--precision f32] [--models NAME ..] [--sample SEED,EACH] [--orchestrion PROGRAM] [--out FILE]

Each model of `bench/suite` is exported and compiled, and each step of its plan is timed alone by `orchestrion explain --measure`. On
CPUs everything is bound to one CPU, which plans are made for then (--cpu chooses it). A kernel's figure is the median over its steps
in a model, less what timing it adds: how much longer than modelled the smallest kernel takes. No kernel takes less than that one,
so its time is the least of measurements before each model and of all kernels: a device may be slow at first. The ratio is measured
over modelled time. Steps on the host do not count.

Writes OUT.json and OUT.md (default: bench/results/model-error-TARGET).
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import onnx
from onnx import TensorProto, helper

import accuracy
import zoo

ROOT = zoo.ROOT
sys.path.insert(0, str(ROOT / "bench/suite"))
import draw  # noqa: E402

PREPARE = ROOT / "bench/suite/prepare.py"

#: Models of different kinds: convolutional nets, mixers, vision transformers, encoders, decoders, state space.
MODELS = """
torchvision/resnet50@1,usual,script timm/efficientnet_b0@1,usual,script timm/convnextv2_pico@1,usual,script
timm/vit_small_patch16_224@1,usual,script timm/mixer_s16_224@1,usual,script transformers/bert@1,usual,dynamo
transformers/gpt2@8,usual,dynamo transformers/swinv2@1,usual,script transformers/mamba@1,usual,dynamo
""".split()

#: Kinds of kernels by the primitives in them: the first that fits.
CLASSES = [
    ("convolution", re.compile(r"= conv")),
    ("contraction", re.compile(r"= (matmul|contract)")),
    ("reduction", re.compile(r"= (reduce|pool|scan|cum|top|sort|arg)")),
]
#: Rows of the table of worst kernels.
WORST = 20
#: Below this time ratios say little: it is what repeated measurements differ by.
LEAST_US = 1.0


def smallest_model(path):
    """One kernel that adds 1 to one number."""
    port = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])  # noqa: E731
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "smallest", [port("x")], [port("y")], [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Machine:
    """The command, and where it runs."""

    def __init__(self, args):
        self.args = args
        self.bound = (lambda: os.sched_setaffinity(0, [args.cpu])) if args.target == "cpu" else None

    def output(self, *words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, preexec_fn=self.bound)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0][:300])
        return done.stdout

    def measured(self, model, cache):
        """The manifest of a model's plan, and the microseconds of each step."""
        artifact = model.with_suffix(".orc")
        further = ["--target", self.args.target, "--precision", self.args.precision, "--cache-dir", cache, *self.args.options.split()]
        self.output(self.args.orchestrion, "compile", model, *further, "--quiet", "-o", artifact)
        found = json.loads(self.output(self.args.orchestrion, "explain", artifact, "--measure", "--json"))
        if None in found["measured_us"]:
            raise RuntimeError("this machine does not run it")
        return found["manifest"], found["measured_us"]


def kind(step):
    """The class of a kernel."""
    if step["proof"] is not None:
        return "found"
    text = "\n".join(step["computes"])
    return next((name for name, pattern in CLASSES if pattern.search(text)), "elementwise")


def operators(step):
    """The kinds of the model's operators that a step computes."""
    return sorted({match[1] for origin in step["origins"] if (match := re.search(r"\((\w+)\)$", origin))})


def kernels(model, manifest, measured_us):
    """A row for each kernel of a plan, with the time that it takes alone. Kernels that differ in offsets alone, as those of the steps of a loop, are one."""
    steps = collections.defaultdict(list)
    for step, time_us in zip(manifest["steps"], measured_us):
        if isinstance(step["action"], dict) and "kernel" in step["action"]:
            kernel = manifest["kernels"][step["action"]["kernel"]]
            key = (kind(step), tuple(operators(step)), kernel["schedule"], round(step["cost_us"], 3))
            steps[key].append((kernel["name"], time_us))
    for (group, kinds, schedule, modelled_us), found in steps.items():
        yield {
            "model": model, "kernel": found[0][0], "class": group, "schedule": schedule, "steps": len(found), "operators": kinds,
            "modelled_us": modelled_us, "measured_us": round(statistics.median(time_us for _, time_us in found), 3),
        }


def less_alone(rows, alone_us):
    """The rows without what timing a kernel alone adds."""
    return [{**row, "measured_us": round(max(row["measured_us"] - alone_us, 0.0), 3)} for row in rows]


def quantile(values, share):
    """A quantile of sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]


def summary(rows):
    """Quantiles of measured over modelled times, and how many are near 1."""
    rows = [row for row in rows if row["modelled_us"] > 0 and row["measured_us"] > 0]
    ratios = sorted(row["measured_us"] / row["modelled_us"] for row in rows)
    if not ratios:
        return None
    within = lambda factor: sum(1 / factor <= ratio <= factor for ratio in ratios) / len(ratios)  # noqa: E731
    total = lambda key: sum(row[key] * row["steps"] for row in rows)  # noqa: E731
    return {"kernels": len(ratios), "p1": quantile(ratios, 0.01), "p10": quantile(ratios, 0.1), "median": quantile(ratios, 0.5),
            "p90": quantile(ratios, 0.9), "p99": quantile(ratios, 0.99), "largest": ratios[-1], "within_2": within(2), "within_5": within(5),
            "total": total("measured_us") / total("modelled_us")}


def groups(rows):
    """Name and rows of each line of the table of quantiles."""
    long = [row for row in rows if max(row["measured_us"], row["modelled_us"]) >= LEAST_US]
    yield "all kernels", rows
    yield f"of {LEAST_US:.0f} us and more", long
    for name in sorted({row["class"] for row in rows}):
        yield f"{name}, of {LEAST_US:.0f} us and more", [row for row in long if row["class"] == name]


def worst(rows):
    """The kernels that are furthest from what was modelled, either way."""
    long = [row for row in rows if min(row["measured_us"], row["modelled_us"]) > 0 and max(row["measured_us"], row["modelled_us"]) >= LEAST_US]
    distance = lambda row: max(row["measured_us"] / row["modelled_us"], row["modelled_us"] / row["measured_us"])  # noqa: E731
    return sorted(long, key=distance, reverse=True)[:WORST]


def markdown(report):
    """The report as Markdown."""
    rows = report["kernels"]
    lines = [f"# Measured and modelled times of kernels: {report['target']}, {report['precision']}", "", "Written by `bench/model_error.py`.", "",
             f"{report['device']}; commit {report['commit']}; {report['date']}. Ratios are measured over modelled; what timing alone adds,",
             f"{report['alone_us']:.2f} us, is subtracted. `total`: all measured over all modelled time.", "",
             "| | kernels | 1 % | 10 % | median | 90 % | 99 % | largest | within 2 x | within 5 x | total |", "|---" * 11 + "|"]
    for name, group in groups(rows):
        if found := summary(group):
            ratios = [f"{found[key]:.2f}" for key in ("p1", "p10", "median", "p90", "p99", "largest")]
            cells = [name, found["kernels"], *ratios, f"{found['within_2']:.0%}", f"{found['within_5']:.0%}", f"{found['total']:.2f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "## Models", "", "| model | kernels | median | total |", "|---|---|---|---|"]
    for model in dict.fromkeys(row["model"] for row in rows):
        if found := summary([row for row in rows if row["model"] == model]):
            lines.append(f"| {model} | {found['kernels']} | {found['median']:.2f} | {found['total']:.2f} |")
    lines += [f"| {model} | | {why} | |" for model, why in report["failed"].items()]
    lines += ["", f"## The {WORST} kernels with the largest factor", "", "| ratio | measured us | modelled us | steps | model | class | operators | schedule |", "|---" * 8 + "|"]
    for row in worst(rows):
        operators = ", ".join(row["operators"][:6]) + (", .." if len(row["operators"]) > 6 else "")
        lines.append(f"| {row['measured_us'] / row['modelled_us']:.2f} | {row['measured_us']:.1f} | {row['modelled_us']:.1f} | {row['steps']} | {row['model'].partition('@')[0]} | {row['class']} "
                     f"| {operators} | {row['schedule'].replace('|', '/')[:100]} |")
    return "\n".join(lines) + "\n"


def device_name(target):
    if target == "cpu":
        return f"{accuracy.machine()}, one thread"
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", help="default: f32 on CPUs, f16 on GPUs")
    parser.add_argument("--models", nargs="+", metavar="NAME[@BATCH,SIZE,EXPORTER]", default=MODELS)
    parser.add_argument("--sample", metavar="SEED,EACH", help="further EACH models of each stratum of the suite, of batch 1, drawn by a seed")
    parser.add_argument("--options", default="", help="further options of `orchestrion compile`, in one word")
    parser.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the CPU that is used")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    if args.sample:
        seed, each = map(int, args.sample.split(","))
        args.models = [*args.models, *map(str, draw.stratified(seed, each, batch=1))]
    args.precision = args.precision or {"cpu": "f32", "cuda": "f16"}[args.target]
    args.out = args.out or ROOT / f"bench/results/model-error-{args.target}"
    return args


def main():
    args = options()
    args.orchestrion = args.orchestrion or zoo.build()
    machine, rows, failed = Machine(args), [], {}
    setting = {"target": args.target, "precision": args.precision, "device": device_name(args.target),
               "commit": accuracy.setting()["commit"], "date": datetime.date.today().isoformat()}
    with tempfile.TemporaryDirectory(prefix="model-error-") as folder:
        folder = pathlib.Path(folder)
        cache, smallest = folder / "cache", folder / "smallest.onnx"
        smallest_model(smallest)
        least_us = float("inf")
        for model in args.models:
            manifest, measured_us = machine.measured(smallest, cache)
            least_us, modelled_us = min(least_us, measured_us[0]), manifest["steps"][0]["cost_us"]
            data = pathlib.Path(tempfile.mkdtemp(dir=folder))
            try:
                machine.output(sys.executable, PREPARE, model, data, "--no-reference")
                found = list(kernels(model, *machine.measured(data / "model.onnx", cache)))
            except RuntimeError as error:
                failed[model] = str(error)
                print(f"{model}: {error}", flush=True)
                continue
            rows += found
            alone_us = max(0.0, min(least_us, *(row["measured_us"] for row in rows)) - modelled_us)
            told = summary(less_alone(found, alone_us))
            print(f"{model}: {told['kernels']} kernels, median {told['median']:.2f}, total {told['total']:.2f}", flush=True)
            report = {**setting, "alone_us": alone_us, "failed": failed, "kernels": less_alone(rows, alone_us)}
            args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
            args.out.with_suffix(".md").write_text(markdown(report))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
