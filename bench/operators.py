#!/usr/bin/env python3
"""Models of one operator each beside ONNX Runtime on a CPU, in f32, at three sizes.

    operators.py [NAME ...] [--threads 1 2] [--rounds 8] [--orchestrion PROGRAM] [--nvrtc FILE] [--out bench/results/operators]

What each computes is first compared with ONNX Runtime, and its plans for this CPU and for `cuda:sm_90` are searched for steps on the
host. Then the two take turns as in `cpu.py`. Operators that move values must give the same bits; ties of a TopK go to the lower index.

Writes OUT.json (every turn) and OUT.md (the tables).
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import onnx

import cpu
import zoo

sys.path.insert(0, str(zoo.ROOT / "bench/patterns"))
from patterns import Graph  # noqa: E402

#: A plan is within this factor of ONNX Runtime's time.
WANTED = 1.5

#: Largest error allowed of operators that compute, relative to an output's largest magnitude.
TOLERANCE = 1e-4

#: (name, sizes by name, build): `build(graph, *size)` adds one operator, as exporters write it.
OPERATORS = []


def operator(small, medium, large):
    """Registers an operator at three sizes under its function's name."""

    def register(build):
        OPERATORS.append((build.__name__, {"small": small, "medium": medium, "large": large}, build))
        return build

    return register


def top_k(g, rows, extent, k, **attributes):
    values, indices = g.TopK(g.input(rows, extent), g.ints(k), outputs=2, axis=-1, **attributes)
    g.output(values)
    g.output(indices, "i64")


@operator((16, 1000), (1, 32000), (1, 100000))
def top_5(g, rows, extent):
    top_k(g, rows, extent, 5)


@operator((16, 1000), (1, 32000), (1, 100000))
def top_50(g, rows, extent):
    top_k(g, rows, extent, 50)


@operator((1, 8400), (4, 8400), (8, 25200))
def top_300(g, rows, extent):
    # Boxes of a detector.
    top_k(g, rows, extent, 300)


@operator((16, 1000), (1, 32000), (1, 100000))
def smallest_5(g, rows, extent):
    top_k(g, rows, extent, 5, largest=0)


@operator((16, 1000), (1, 32000), (1, 100000))
def sort(g, rows, extent):
    top_k(g, rows, extent, extent)


@operator((16, 1000), (1, 32000), (1, 100000))
def arg_max(g, rows, extent):
    g.output(g.ArgMax(g.input(rows, extent), axis=-1, keepdims=0), "i64")


@operator((1, 32, 32, 21), (1, 128, 128, 21), (4, 256, 256, 21))
def arg_max_of_classes(g, batch, height, width, classes):
    g.output(g.ArgMax(g.input(batch, classes, height, width), axis=1, keepdims=0), "i64")


@operator((8, 128), (16, 1024), (1, 100000))
def cumulative_sum(g, rows, extent):
    g.output(g.CumSum(g.input(rows, extent), g.constant(np.int64(1))))


@operator((2, 16, 32), (4, 256, 64), (8, 512, 256))
def cumulative_sum_of_middle_axis(g, batch, extent, width):
    g.output(g.CumSum(g.input(batch, extent, width), g.constant(np.int64(1))))


@operator((64, 32, 16), (1024, 256, 64), (4096, 4096, 128))
def scatter_elements(g, rows, updates, width):
    indices = g.input(updates, width, dtype="i64", high=rows)
    g.output(g.ScatterElements(g.input(rows, width), indices, g.input(updates, width), axis=0))


@operator((64, 32, 16), (1024, 256, 64), (4096, 4096, 128))
def scatter_elements_added(g, rows, updates, width):
    # scatter_add_ of a graph network.
    indices = g.input(updates, width, dtype="i64", high=rows)
    g.output(g.ScatterElements(g.input(rows, width), indices, g.input(updates, width), axis=0, reduction="add"))


@operator((64, 32, 16), (1024, 256, 64), (32000, 4096, 128))
def scatter_nd(g, rows, updates, width):
    indices = g.input(updates, 1, dtype="i64", high=rows)
    g.output(g.ScatterND(g.input(rows, width), indices, g.input(updates, width)))


@operator((64, 32), (4096, 512), (1 << 20, 1 << 14))
def scatter_nd_of_elements(g, elements, updates):
    indices = g.input(updates, 1, dtype="i64", high=elements)
    g.output(g.ScatterND(g.input(elements), indices, g.input(updates)))


@operator((1000, 128, 64), (30522, 128, 768), (30522, 16384, 768))
def embedding_gradient(g, rows, tokens, width):
    indices = g.input(tokens, 1, dtype="i64", high=rows)
    zeros = g.ConstantOfShape(g.ints(rows, width))
    g.output(g.ScatterND(zeros, indices, g.input(tokens, width), reduction="add"))


@operator((4, 32, 1), (8, 256, 4), (8, 1024, 16))
def index_put(g, heads, length, tokens):
    # cache[:, :, positions] = keys of new tokens, by torch's exporter: the axis is moved to the front and back.
    cache, keys = g.input(1, heads, length, 64), g.input(1, heads, tokens, 64)
    positions = g.Unsqueeze(g.input(tokens, dtype="i64", high=length), g.ints(-1))
    moved = g.Transpose(cache, perm=[2, 1, 0, 3])
    placed = g.ScatterND(moved, positions, g.Transpose(keys, perm=[2, 1, 0, 3]))
    g.output(g.Transpose(placed, perm=[2, 1, 0, 3]))


@operator((64, 32, 16), (1024, 256, 64), (4096, 4096, 128))
def gather_elements(g, rows, taken, width):
    g.output(g.GatherElements(g.input(rows, width), g.input(taken, width, dtype="i64", high=rows), axis=0))


@operator((1000, 16, 64), (30522, 128, 384), (30522, 1024, 768))
def gather_rows(g, rows, taken, width):
    g.output(g.Gather(g.input(rows, width), g.input(taken, dtype="i64", high=rows), axis=0))


@operator((8, 64, 16), (64, 512, 64), (256, 4096, 256))
def gather_columns(g, rows, width, taken):
    g.output(g.Gather(g.input(rows, width), g.input(taken, dtype="i64", high=width), axis=1))


SIZES = ((8, 14, 14), (64, 56, 56), (64, 160, 160))


def resize(g, channels, height, width, scale, **attributes):
    x = g.input(1, channels, height, width)
    sizes = g.ints(1, channels, int(height * scale), int(width * scale))
    g.output(g.Resize(x, "", "", sizes, **attributes))


@operator(*SIZES)
def resize_nearest_up(g, *size):
    resize(g, *size, 2, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator(*SIZES)
def resize_nearest_by_1_7(g, *size):
    resize(g, *size, 1.7, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator(*SIZES)
def resize_linear_up(g, *size):
    resize(g, *size, 2, mode="linear", coordinate_transformation_mode="half_pixel")


@operator(*SIZES)
def resize_linear_down(g, *size):
    resize(g, *size, 0.5, mode="linear", coordinate_transformation_mode="half_pixel")


@operator(*SIZES)
def resize_linear_by_1_7(g, *size):
    resize(g, *size, 1.7, mode="linear", coordinate_transformation_mode="align_corners")


@operator(*SIZES)
def resize_cubic_up(g, *size):
    resize(g, *size, 2, mode="cubic", coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75)


@operator(*SIZES)
def resize_cubic_by_0_7(g, *size):
    resize(g, *size, 0.7, mode="cubic", coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75)


@operator((16, 10), (512, 1000), (1024, 32000))
def one_hot(g, rows, classes):
    depth, values = g.constant(np.int64(classes)), g.constant(np.array([0, 1], np.float32))
    g.output(g.OneHot(g.input(rows, dtype="i64", high=classes), depth, values, axis=-1))


@operator((1, 8, 14, 14), (1, 64, 56, 56), (4, 64, 112, 112))
def unfold(g, batch, channels, height, width):
    # torch.nn.functional.unfold(x, 3, padding=1): positions by Gather of the padded input.
    padded = g.Pad(g.input(batch, channels, height, width), g.ints(0, 0, 1, 1, 0, 0, 1, 1))
    rows = np.arange(3)[:, None] + np.arange(height)
    columns = np.arange(3)[:, None] + np.arange(width)
    taken = g.Gather(g.Gather(padded, rows, axis=2), columns, axis=4)
    moved = g.Transpose(taken, perm=[0, 1, 2, 4, 3, 5])
    g.output(g.Reshape(moved, g.ints(batch, channels * 9, height * width)))


@operator((14, 96), (56, 96), (112, 192))
def roll(g, side, channels):
    # torch.roll(x, (-3, -3), (1, 2)) of a Swin block.
    x = g.input(1, side, side, channels)
    for axis in (1, 2):
        last = np.iinfo(np.int64).max
        parts = [(3, last), (0, 3)]
        x = g.Concat(*(g.Slice(x, g.ints(a), g.ints(b), g.ints(axis)) for a, b in parts), axis=axis)
    g.output(x)


def conv_transpose_weight(channels_in, channels_out, window):
    shape = (channels_in, channels_out, window, window)
    return (np.random.default_rng(0).standard_normal(shape) * channels_in**-0.5).astype(np.float32)


@operator((16, 8, 7), (128, 64, 28), (64, 32, 112))
def conv_transpose_2(g, channels_in, channels_out, side):
    weight = g.constant(conv_transpose_weight(channels_in, channels_out, 2))
    g.output(g.ConvTranspose(g.input(1, channels_in, side, side), weight, strides=[2, 2]))


@operator((16, 8, 7), (128, 64, 28), (64, 32, 112))
def conv_transpose_4(g, channels_in, channels_out, side):
    weight = g.constant(conv_transpose_weight(channels_in, channels_out, 4))
    g.output(g.ConvTranspose(g.input(1, channels_in, side, side), weight, strides=[2, 2], pads=[1, 1, 1, 1]))


def arrays(model):
    """An input for each port: indices below their bound, normal numbers otherwise. Indices differ along their first axis where they
    can: with equal ones ONNX leaves open which update a scatter keeps."""
    generator = np.random.default_rng(1)
    for port in model.graph.input:
        shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        _, _, bound = port.name.partition("_below")
        if not bound:
            yield generator.standard_normal(shape).astype(np.float32)
        elif shape[0] <= int(bound):
            each = np.broadcast_to(np.arange(int(bound)).reshape(-1, *[1] * (len(shape) - 1)), (int(bound), *shape[1:]))
            yield np.ascontiguousarray(generator.permuted(each, axis=0)[: shape[0]])
        else:
            yield generator.integers(0, int(bound), shape)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
    return done.stdout


def host_steps(program, artifact):
    """Names of steps on the host."""
    manifest = json.loads(run(program, "explain", artifact, "--json"))["manifest"]
    return [step["name"] for step in manifest["steps"] if isinstance(step["action"], dict) and "host" in step["action"]]


def difference(program, folder, artifact):
    """The largest difference from ONNX Runtime, relative to an output's largest magnitude."""
    import onnxruntime
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    fed = {port.name: value for port, value in zip(session.get_inputs(), zoo.inputs(folder))}
    run(program, "run", artifact, "--quiet", "--input-dir", folder / "test_data_set_0", "--output-dir", folder / "ours")
    worst = 0.0
    for port, expected in zip(session.get_outputs(), session.run(None, fed)):
        given = np.load(folder / "ours" / f"{port.name}.npy")
        if given.shape != expected.shape or given.dtype != expected.dtype:
            raise RuntimeError(f"{port.name} is {given.dtype} {given.shape}, not {expected.dtype} {expected.shape}")
        apart = np.abs(given.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        worst = max(worst, float(apart / max(np.abs(expected).max(initial=0), 1e-30)))
    if worst > TOLERANCE:
        raise RuntimeError(f"differs from ONNX Runtime by {worst:.2g}")
    return worst


def measure(program, nvrtc, name, size, build, threads, rounds, scratch):
    """One operator at one size."""
    graph = Graph(18)
    build(graph, *size)
    folder = scratch / name
    folder.mkdir()
    model = graph.model(name)
    onnx.save(model, folder / "model.onnx")
    zoo.write_inputs(folder, arrays(model))
    artifact, for_gpu = folder / "cpu.orc", folder / "gpu.orc"
    run(program, "compile", folder / "model.onnx", "-o", artifact, "--quiet")
    gpu = ["--nvrtc", nvrtc] if nvrtc else []
    found = {"size": size, "host": {"cpu": host_steps(program, artifact)}, "threads": {}}
    try:
        run(program, "compile", folder / "model.onnx", "--target", "cuda:sm_90", *gpu, "-o", for_gpu, "--quiet")
        found["host"]["cuda"] = host_steps(program, for_gpu)
    except RuntimeError as problem:
        found["host"]["cuda"] = [f"not compiled: {str(problem)[:100]}"]
    found["difference"] = difference(program, folder, artifact)
    engines = ("orchestrion", "onnxruntime")
    for count in threads:
        commands = {engine: cpu.command(engine, folder, artifact, program, count) for engine in engines}
        found["threads"][str(count)] = cpu.race(commands, count, rounds)
    return found


def table(results, threads):
    """The Markdown table, worst rows first: ratios are ours by ONNX Runtime's."""
    rows = []
    for label, found in results.items():
        if "error" in found:
            rows.append((float("inf"), f"| {label} | {found['error']} |" + " |" * (3 * len(threads) + 1)))
            continue
        cells, worst = [], 0.0
        for count in map(str, threads):
            ms = found["threads"][count]["ms"]
            ratio = ms["orchestrion"] / ms["onnxruntime"]
            worst = max(worst, ratio)
            shown = f"**{ratio:.2f}**" if ratio > WANTED else f"{ratio:.2f}"
            cells += [f"{1e3 * ms['orchestrion']:.1f}", f"{1e3 * ms['onnxruntime']:.1f}", shown]
        host = ", ".join(f"{target}: {' '.join(steps)}" for target, steps in found["host"].items() if steps)
        shape = "x".join(map(str, found["size"]))
        rows.append((worst, f"| {label} | {shape} | " + " | ".join(cells) + f" | {host} |"))
    heads = "".join(f" ours, {count} thread{'s' * (count > 1)} | ONNX Runtime | ratio |" for count in threads)
    lines = [f"| operator | size |{heads} on the host |", "|---|---" + "|---" * (3 * len(threads) + 1) + "|"]
    return "\n".join(lines + [line for _, line in sorted(rows, key=lambda row: -row[0])])


def summary(results, threads):
    ratios = [
        found["threads"][str(count)]["ms"]["orchestrion"] / found["threads"][str(count)]["ms"]["onnxruntime"]
        for found in results.values() if "error" not in found for count in threads
    ]
    within = sum(ratio <= WANTED for ratio in ratios)
    hosts = sum(any(found["host"].values()) for found in results.values() if "error" not in found)
    if not ratios:
        return ""
    return (f"{within} of {len(ratios)} rows are within {WANTED} of ONNX Runtime's time, geometric mean "
            f"{statistics.geometric_mean(ratios):.2f}; {hosts} of {len(results)} models have a step on the host.")


def machine(program):
    import onnxruntime
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=zoo.ROOT, stdout=subprocess.PIPE, text=True)
    date = subprocess.run(["date", "-u", "+%Y-%m-%d"], stdout=subprocess.PIPE, text=True)
    return {
        "cpu": names[0] if names else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "onnxruntime": onnxruntime.__version__,
        "orchestrion": commit.stdout.strip(),
        "date": date.stdout.strip(),
    }


def write(args, about, results):
    """Writes what there is so far."""
    report = {"machine": about, "rounds": args.rounds, "operators": results}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    heading = ", ".join(f"{key} {value}" for key, value in about.items())
    args.out.with_suffix(".md").write_text(
        f"# Single operators beside ONNX Runtime, f32\n\n{heading}; median of {args.rounds} interleaved turns, in us.\n"
        f"Written by `bench/operators.py`, worst rows first. A ratio is our time by ONNX Runtime's, bold beyond {WANTED}.\n"
        f"{summary(results, args.threads)}\n\n{table(results, args.threads)}\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME", help="operators; all by default")
    args.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args.add_argument("--rounds", type=int, default=8)
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--nvrtc", help="NVRTC's library; without one where the system has it")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/operators")
    args = args.parse_args()
    program = args.orchestrion or zoo.build()
    about, results = machine(program), {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, sizes, build in OPERATORS:
            if args.names and name not in args.names:
                continue
            for label, size in sizes.items():
                label = f"{name} {label}"
                try:
                    found = measure(program, args.nvrtc, label.replace(" ", "_"), size, build, args.threads, args.rounds,
                                    pathlib.Path(scratch))
                    ms = [result["ms"] for result in found["threads"].values()]
                    shown = [f"{1e3 * each['orchestrion']:.1f} / {1e3 * each['onnxruntime']:.1f} us" for each in ms], found["host"]
                except RuntimeError as error:
                    shown = found = {"size": size, "error": str(error)}
                results[label] = found
                print(label, shown, flush=True)
                write(args, about, results)


if __name__ == "__main__":
    main()
