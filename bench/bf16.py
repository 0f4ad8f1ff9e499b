#!/usr/bin/env python3
"""What bf16 gains and costs: Orchestrion in f32 and in bf16, beside OpenVINO in f32 and as it computes by itself.

    bf16.py [NAME ...] [--threads 1] [--rounds 12] [--out bench/results/bf16]

`gemm1024`, a product of a 1024 x 1024 input and a weight of that size, is measured with the models of the zoo. OpenVINO by
itself computes in bf16 where the CPU has AMX or AVX512-BF16, so that is what bf16 is compared with. Errors are the largest
one of an output against f64, relative to the output's largest magnitude (`orchestrion verify`). Engines take turns as in
cpu.py. On a machine that does not multiply bf16 this ends with orchestrion's message.

Writes OUT.json (every turn) and OUT.md (the table).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import cpu
import zoo

GEMM = "gemm1024"
SIZE = 1024
PRECISIONS = ("f32", "bf16")
PEERS = ("openvino", "openvino-default")


def gemm(folder):
    """The product as a model with an input, in the shape of a zoo folder."""
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    shape = [SIZE, SIZE]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], GEMM,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")])
    zoo.write_inputs(folder, [x])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "model.onnx")
    return folder


def compiled(program, folder, precision, artifact):
    command = [program, "compile", folder / "model.onnx", "-o", artifact, "--precision", precision, "--quiet"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def measure(program, folder, scratch, args):
    commands, errors = {}, {}
    for precision in PRECISIONS:
        artifact = scratch / f"{folder.name}.{precision}.orc"
        compiled(program, folder, precision, artifact)
        errors[precision] = cpu.verified(program, folder, artifact)["error"]
        commands[precision] = cpu.command("orchestrion", folder, artifact, program, args.threads)
    peers = {engine: cpu.command(engine, folder, None, program, args.threads) for engine in PEERS}
    result = cpu.race_able(commands | peers, PEERS, folder.name, args.threads, args.rounds)
    return result | {"error": errors}


def table(models):
    lines = [
        "| model | f32 ms | bf16 ms | OpenVINO f32 ms | OpenVINO default ms | bf16 vs f32 | bf16 vs OpenVINO default "
        "| f32 error | bf16 error |",
        "|---|---" + "|---" * 7 + "|",
    ]
    gains = []
    for name, result in models.items():
        ms, errors = result["ms"], result["error"]
        gain = ms["f32"] / ms["bf16"]
        if name != GEMM:
            gains.append(gain)
        times = " | ".join(f"{ms[engine]:.4g}" if engine in ms else "failed" for engine in PRECISIONS + PEERS)
        peer = f"{ms['openvino-default'] / ms['bf16']:.2f}" if "openvino-default" in ms else ""
        lines.append(f"| {name} | {times} | {gain:.2f} | {peer} | {errors['f32']:.1e} | {errors['bf16']:.1e} |")
    if gains:
        lines.append(f"| **geometric mean of models** | | | | | **{statistics.geometric_mean(gains):.2f}** | | | |")
    return "\n".join(lines) + "\n"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME", help=f"{GEMM} or a model (default: all)")
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--rounds", type=int, default=12)
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/bf16")
    args = args.parse_args()
    program = args.orchestrion or zoo.build()
    models = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        names = [name for name in args.names if name != GEMM]
        folders = [gemm(scratch / GEMM)] if GEMM in args.names or not args.names else []
        folders += zoo.folders(names) if names or not args.names else []
        for folder in folders:
            try:
                models[folder.name] = measure(program, folder, scratch, args)
            except (RuntimeError, subprocess.CalledProcessError) as problem:
                sys.exit(f"{folder.name}: {problem}")
            print(folder.name, {engine: round(ms, 4) for engine, ms in models[folder.name]["ms"].items()},
                  models[folder.name]["error"], flush=True)
    report = {"machine": cpu.machine(), "threads": args.threads, "rounds": args.rounds, "models": models}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    args.out.with_suffix(".md").write_text(
        f"# bf16 beside f32\n\n{about}; threads {args.threads}; median of {args.rounds} interleaved turns.\n"
        f"Written by `bench/bf16.py`. Ratios above 1 mean that bf16 is faster.\n\n{table(models)}")


if __name__ == "__main__":
    main()
