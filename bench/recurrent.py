#!/usr/bin/env python3
"""Recurrent layers beside a peer: ONNX Runtime on CPUs, torch eager (cuDNN) on an NVIDIA GPU.

    recurrent.py --orchestrion PROGRAM [--device cpu|cuda] [--precision f32|f16] [--threads N ..] [--seconds S] [CELL-TIME-HIDDEN-BATCH ..]

Needs numpy and onnx, and onnxruntime (cpu) or torch (cuda). Times are medians; the best run stands beside them. The peer and
Orchestrion take turns.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
SIZES = ["50-128-1", "100-512-1", "32-256-16"]
GPU_SIZES = ["200-256-1", "100-512-32", "100-1024-1", "50-1024-32"]


def layer(cell, steps, hidden, batch, path):
    """A layer of as many inputs as hidden units; its weights."""
    generator, bound = np.random.default_rng(0), hidden**-0.5
    rows = GATES[cell] * hidden
    shapes = {"w": (1, rows, hidden), "r": (1, rows, hidden), "b": (1, 2 * rows)}
    values = {name: generator.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}
    attributes = {"linear_before_reset": 1} if cell == "GRU" else {}
    node = helper.make_node(cell, ["x", *values], ["y"], hidden_size=hidden, **attributes)
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in [("x", [steps, batch, hidden]), ("y", [steps, 1, batch, hidden])]
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph([node], "layer", ports[:1], ports[1:], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def sample(run, seconds):
    """Microseconds of runs."""
    for _ in range(5):
        run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - start))
    return times


def onnxruntime_run(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    port = session.get_inputs()[0]
    x = np.random.default_rng(1).standard_normal(port.shape).astype(np.float32)
    return lambda: session.run(None, {port.name: x})


def torch_times(cell, steps, hidden, batch, precision, seconds):
    """Microseconds of runs by the GPU's clock."""
    import torch

    dtype = {"f32": torch.float32, "f16": torch.float16}[precision]
    torch.backends.cudnn.allow_tf32 = False
    module = getattr(torch.nn, cell)(hidden, hidden).to("cuda", dtype).eval()
    x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run():
        start.record()
        module(x)
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end)

    with torch.inference_mode():
        for _ in range(10):
            run()
        times, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            times.append(run())
    return times


def own(program, path, arguments, seconds):
    """Median and best of Orchestrion, in microseconds."""
    command = [program, "bench", path, "--json", "--seconds", seconds, *arguments]
    made = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    found = json.loads(made.stdout)
    return 1e3 * found["median_ms"], 1e3 * found["min_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrion", default="target/release/orchestrion")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["f32", "f16"], default="f32")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("layers", nargs="*", help="such as LSTM-100-512-1")
    args = parser.parse_args()
    sizes = SIZES + (GPU_SIZES if args.device == "cuda" else [])
    layers = args.layers or [f"{cell}-{size}" for cell in ("LSTM", "GRU") for size in sizes]
    print("| layer | threads | ours, us | best | peer, us | best | ratio of medians |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in layers:
            cell, *numbers = name.split("-")
            steps, hidden, batch = map(int, numbers)
            path = pathlib.Path(folder) / f"{name}.onnx"
            layer(cell, steps, hidden, batch, path)
            for threads in args.threads if args.device == "cpu" else [0]:
                if args.device == "cpu":
                    peer = sample(onnxruntime_run(path, threads), args.seconds)
                    arguments = ["--threads", threads]
                else:
                    peer = torch_times(cell, steps, hidden, batch, args.precision, args.seconds)
                    arguments = ["--target", "cuda", "--precision", args.precision, "--device-only"]
                median, best = own(args.orchestrion, path, arguments, args.seconds)
                peer_median = statistics.median(peer)
                figures = [f"{value:.1f}" for value in (median, best, peer_median, min(peer))]
                print("|", " | ".join([name, str(threads or "-"), *figures, f"{peer_median / median:.2f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
