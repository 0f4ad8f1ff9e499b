#!/usr/bin/env python3
"""Single kernels on one CPU: Orchestrion's generated code beside ONNX Runtime and OpenVINO, and the machine's peak.

    kernels.py [NAME ...] [--rounds 24] [--out bench/results/kernels]

Each kernel is a model of one or two operators, with drawn weights, run as `cpu.py` runs whole models: interleaved turns
of processes bound to the same CPU. The peak is what `orchestrion doctor --calibrate` measures: independent
multiply-adds in registers. Writes OUT.json and OUT.md.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import cpu
import zoo

RANDOM = np.random.default_rng(7)


def draw(*shape):
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def model(nodes, inputs, constants, output):
    """A model with one output; every tensor is f32."""
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "kernel", [value(name, shape) for name, shape in inputs.items()],
                              [value("y", output)],
                              [numpy_helper.from_array(array, name) for name, array in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def gemm(m, n, k):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, {"x": [m, k]}, {"w": draw(k, n)}, [m, n]), 2 * m * n * k


def conv(channels, maps, size, groups=1):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4, kernel_shape=[3, 3], group=groups)]
    weights = draw(maps, channels // groups, 3, 3)
    flops = 2 * maps * size * size * channels // groups * 9
    return model(nodes, {"x": [1, channels, size, size]}, {"w": weights}, [1, maps, size, size]), flops


def layer_norm(add):
    nodes = [helper.make_node("LayerNormalization", ["s" if add else "x", "scale", "bias"], ["y"], axis=-1)]
    inputs = {"x": [128, 768]}
    if add:
        nodes.insert(0, helper.make_node("Add", ["x", "r"], ["s"]))
        inputs["r"] = [128, 768]
    return model(nodes, inputs, {"scale": draw(768), "bias": draw(768)}, [128, 768]), None


KERNELS = {
    "gemm_512x768x768": lambda: gemm(512, 768, 768),
    "gemm_128x3072x768": lambda: gemm(128, 3072, 768),
    "gemm_1024": lambda: gemm(1024, 1024, 1024),
    "conv3x3_56x56x64": lambda: conv(64, 64, 56),
    "depthwise3x3_112x112x96": lambda: conv(96, 96, 112, groups=96),
    "layernorm_128x768": lambda: layer_norm(False),
    "add_layernorm_128x768": lambda: layer_norm(True),
}


def save(folder, built):
    """Model and inputs as `cpu.measure` wants them."""
    shapes = [[dim.dim_value for dim in port.type.tensor_type.shape.dim] for port in built.graph.input]
    zoo.write_inputs(folder, [draw(*shape) for shape in shapes])
    onnx.save(built, folder / "model.onnx")


def peak_gflops(program):
    text = subprocess.run([program, "doctor", "--calibrate"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(re.search(r"([\d.]+) GFLOP/s f32 per core", text).group(1))


def table(report):
    lines = [
        "| kernel | Orchestrion us | ONNX Runtime us | OpenVINO us | vs ONNX Runtime | vs OpenVINO | GFLOP/s | of peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in report["kernels"].items():
        ms, flops = result["ms"], result["flops"]
        times = [f"{1e3 * ms[engine]:.4g}" if engine in ms else "failed" for engine in cpu.ENGINES]
        factors = [f"{ms[peer] / ms['orchestrion']:.2f}" if peer in ms else "" for peer in cpu.PEERS]
        speed = flops / ms["orchestrion"] / 1e6 if flops else None
        share = [f"{speed:.0f}", f"{100 * speed / report['peak_gflops']:.0f} %"] if flops else ["", ""]
        lines.append(f"| {name} | " + " | ".join(times + factors + share) + " |")
    return "\n".join(lines) + "\n"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KERNELS))
    args.add_argument("--rounds", type=int, default=24)
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/kernels")
    args = args.parse_args()
    program = args.orchestrion or zoo.build()
    report = {"machine": cpu.machine(), "rounds": args.rounds, "peak_gflops": peak_gflops(program), "kernels": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.names or KERNELS:
            folder, (built, flops) = pathlib.Path(scratch) / name, KERNELS[name]()
            save(folder, built)
            artifact = folder / "kernel.orc"
            subprocess.run([program, "compile", folder / "model.onnx", "-o", artifact, "--quiet"], check=True,
                           stdout=subprocess.DEVNULL)
            result = cpu.measure(folder, artifact, program, 1, args.rounds)
            report["kernels"][name] = result | {"flops": flops}
            print(name, {engine: round(ms, 4) for engine, ms in result["ms"].items()}, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    args.out.with_suffix(".md").write_text(
        f"# Single kernels, f32, one thread\n\n{about}; median of {args.rounds} interleaved turns; measured peak "
        f"{report['peak_gflops']:.0f} GFLOP/s.\nWritten by `bench/kernels.py`. Ratios above 1 mean that Orchestrion is "
        f"faster.\n\n{table(report)}")


main()
