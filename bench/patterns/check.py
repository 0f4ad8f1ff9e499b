#!/usr/bin/env python3
"""Minimal models of patterns.py: each is verified, and planned for a CPU and a GPU without a step on the host, without a step that
depends on constants alone, within as many kernels as it may have, without spills, and without GPU kernels whose few CTAs read much. Needs
no GPU.

    check.py --orchestrion PROGRAM [--nvrtc FILE] [--only NAME ..] [--jobs N]
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from patterns import models

#: The plan that is checked on each CPU, and the GPU's.
TARGETS = {"cpu": ["--target", "x86-64-v3"], "gpu": ["--target", "cuda:sm_90", "--precision", "f16"]}

#: So few CTAs leave most of a GPU idle, which does not matter where each reads no more than this.
FEW_CTAS, CTA_BYTES = 8, 96 << 10


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def inputs(model, folder):
    """Arguments that give the inputs which are indices, below their bound."""
    arguments = []
    generator = np.random.default_rng(1)
    for port in model.graph.input:
        bound = re.search(r"_below(\d+)$", port.name)
        if bound is None:
            continue
        shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        file = folder / f"{port.name}.npy"
        np.save(file, generator.integers(0, int(bound[1]), shape))
        arguments += ["--input", f"{port.name}={file}"]
    return arguments


def plan_problems(manifest, most):
    steps = manifest["steps"]
    kernels = [step for step in steps if isinstance(step["action"], dict) and "kernel" in step["action"]]
    for step in steps:
        if isinstance(step["action"], dict) and "host" in step["action"]:
            yield f"{step['name']} runs on the host"
        read = [slot["place"] for slot in step["slots"] if not slot["written"]]
        if read and all("constant" in place for place in read):
            yield f"{step['name']} depends on constants alone"
    if len(kernels) > most:
        yield f"{len(kernels)} kernels, {most} allowed: {', '.join(step['name'] for step in kernels)}"
    for kernel in manifest["kernels"]:
        resources = (kernel.get("team") or {}).get("resources") or {}
        if resources.get("spill_bytes"):
            yield f"{kernel['name']} spills {resources['spill_bytes']} bytes"
        # Tables that a gather reads parts of do not count.
        read = sum(argument["bytes"] for argument in kernel["arguments"] if not argument["written"])
        is_alone = kernel.get("team") and kernel["tasks"] < FEW_CTAS and "gather" not in kernel["name"]
        if is_alone and read > CTA_BYTES * kernel["tasks"]:
            yield f"{kernel['name']} reads {read} bytes in {kernel['tasks']} CTAs"


def check(program, nvrtc, name, model, most):
    """Problems of one pattern, and its numbers of kernels."""
    found, counts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        verified = run(program, "verify", path, "--quiet", *inputs(model, folder))
        if verified.returncode:
            found.append(f"verify: {(verified.stderr or verified.stdout).strip()[:500]}")
        for target, arguments in TARGETS.items():
            if target == "gpu" and nvrtc:
                arguments = [*arguments, "--nvrtc", nvrtc]
            artifact = folder / f"{target}.orc"
            made = run(program, "compile", path, *arguments, "--quiet", "-o", artifact)
            if made.returncode:
                found.append(f"{target}: {made.stderr.strip()[:500]}")
                continue
            manifest = json.loads(run(program, "explain", artifact, "--json").stdout)["manifest"]
            counts[target] = len(manifest["steps"])
            found += [f"{target}: {problem}" for problem in plan_problems(manifest, most[target])]
    return found, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrion", required=True)
    parser.add_argument("--nvrtc", help="NVRTC's library; without one where the system has it")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--counts", action="store_true", help="print the number of steps of each plan")
    args = parser.parse_args()
    wanted = [row for row in models() if not args.only or row[0] in args.only]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = [
            (name, pool.submit(check, args.orchestrion, args.nvrtc, name, model, {"cpu": cpu, "gpu": gpu}))
            for name, model, cpu, gpu in wanted
        ]
        for name, job in jobs:
            problems, counts = job.result()
            failed += bool(problems)
            if args.counts:
                print(f"{name}: {counts}")
            for problem in problems:
                print(f"{name}: {problem}", flush=True)
    print(f"{len(wanted)} patterns, {failed} with problems")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
