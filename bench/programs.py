#!/usr/bin/env python3
"""The programs of the Mirage paper on the CPU, f32, batch 1: Orchestrion, ONNX Runtime and torch with the same threads.

    programs.py [NAME ...] [--threads 1 2] [--options WORDS] [--rounds 24] [--peers FILE] [--out bench/results/programs-cpu]

The models are those of `bench/gpu/programs.py`: all tensors are inputs. Their functions in torch are those of
`gpu_programs.py` (--peers): `torch` is eager, `torch-compile` is torch.compile with max-autotune, and `torch-flash`, for
attention, torch's own kernel. Engines take turns as in cpu.py. Errors are those of `orchestrion verify`, against f64.
--options are further options of `orchestrion compile`, in one word, like `--options=--tune`.

With NAMEs and an existing OUT.json the other programs' figures are kept, if machine and options are the same.

Writes OUT.json (every turn) and OUT.md (the tables). The exit code is 1 if an error is not allowed or a program failed.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import numpy as np

import cpu
import zoo

# First, because the programs of the GPU's benchmark bear the name of this file.
sys.path.insert(0, str(zoo.ROOT / "bench/gpu"))
import contest
import programs

BATCH = 1
PEERS = ("onnxruntime", "torch", "torch-compile", "torch-flash")
NAMES = ("ONNX Runtime", "torch", "torch.compile", "torch flash")


def write(folder, name, peers):
    """Writes model, inputs and the name of the function in torch; true if the program is attention."""
    build, shapes, result = programs.programs(BATCH)[name]
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(shape, np.float32) for shape in shapes.values()]
    for array in arrays[1:]:
        array *= array.shape[-2] ** -0.5
    zoo.write_inputs(folder, arrays)
    contest.write_model(name, "f32", build, shapes, result, str(folder / "model.onnx"))
    (folder / "torch.json").write_text(json.dumps({"file": str(peers), "program": name, "batch": BATCH}))
    return build is programs.attention


def measure(args, name, folder):
    is_attention = write(folder, name, args.peers)
    artifact = folder / "program.orc"
    seconds, steps, search_s = programs.compiled(args, folder / "model.onnx", artifact)
    found = {"compile_s": seconds, "search_s": search_s, "kernels": len(steps), "found": sum(step["found"] for step in steps)}
    engines = ["orchestrion", *(peer for peer in PEERS if is_attention or peer != "torch-flash")]
    found |= cpu.verified(args.orchestrion, folder, artifact) | {"engines": engines, "threads": {}}
    for threads in args.threads:
        commands = {engine: cpu.command(engine, folder, artifact, args.orchestrion, threads) for engine in engines}
        result = cpu.race_able(commands, PEERS, name, threads, args.rounds)
        found["threads"][str(threads)] = result
        print(name, threads, {engine: round(ms, 4) for engine, ms in result["ms"].items()}, flush=True)
    return found


def time_text(row, result, engine):
    if engine in result["ms"]:
        return f"{result['ms'][engine]:.4g}"
    return "failed" if engine in row["engines"] else ""


def table(report, threads):
    """The Markdown table of one thread count; peers that are not installed have no column."""
    peers = [peer for peer in PEERS if peer == "onnxruntime" or report["machine"]["torch"] != "absent"]
    lines = [
        f"\n## {threads} thread{'s' if threads > 1 else ''}\n",
        "| program | Orchestrion ms | " + " | ".join(f"{name} ms" for peer, name in zip(PEERS, NAMES) if peer in peers)
        + " | vs ONNX Runtime | vs best | kernels | error | compile s |",
        "|---|---" + "|---" * (len(peers) + 5) + "|",
    ]
    seen = []
    for name, row in report["programs"].items():
        if "error_text" in row:
            lines.append(f"| {name} | {row['error_text']} |" + " |" * (len(peers) + 5))
            continue
        result = row["threads"][str(threads)]
        seen.append(cpu.ratios(result, PEERS))
        times = [time_text(row, result, engine) for engine in ("orchestrion", *peers)]
        factors = [f"{seen[-1][key]:.2f}" if key in seen[-1] else "" for key in ("onnxruntime", "best")]
        kernels = f"{row['kernels']} ({row['found']} found)" if row["found"] else str(row["kernels"])
        about = [kernels, f"{row['error']:.1e}" + ("" if row["pass"] else " (too large)"), f"{row['compile_s']:.1f}"]
        lines.append(f"| {name} | " + " | ".join(times + factors + about) + " |")
    if seen:
        means = [statistics.geometric_mean(row[key] for row in seen if key in row) for key in ("onnxruntime", "best")]
        lines.append("| **geometric mean** |" + " |" * (len(peers) + 1) + " " + " | ".join(f"**{mean:.2f}**" for mean in means) + " | | | |")
        wins = sum(row["best"] >= 1 for row in seen)
        lines.append(f"\nAt least as fast as the best peer on {wins} of {len(seen)} programs.")
    return "\n".join(lines) + "\n"


def kept(args, report):
    """The figures of programs that are not measured now, of the same machine measured alike."""
    path = args.out.with_suffix(".json")
    if not args.names or not path.exists():
        return {}
    before = json.loads(path.read_text())
    same = all(before[key] == report[key] for key in ("options", "rounds", "threads"))
    same = same and before["machine"]["cpu"] == report["machine"]["cpu"]
    return before["programs"] if same else {}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME", help=", ".join(programs.programs(BATCH)))
    args.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args.add_argument("--options", default="", help="further options of `orchestrion compile`, in one word")
    args.add_argument("--rounds", type=int, default=24)
    args.add_argument("--peers", type=pathlib.Path, default=zoo.ROOT.parent / "shared/peers/gpu_programs.py")
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/programs-cpu")
    args = args.parse_args()
    order = list(programs.programs(BATCH))
    unknown = set(args.names) - set(order)
    if unknown:
        sys.exit(f"no such program: {', '.join(sorted(unknown))}; there are {', '.join(order)}")
    args.orchestrion, args.target, args.precision = args.orchestrion or zoo.build(), "cpu", "f32"
    report = {"machine": cpu.machine() | torch_version(), "options": args.options, "rounds": args.rounds,
              "threads": args.threads}
    found = report["programs"] = kept(args, report)
    failed = []
    for name in args.names or order:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[name] = measure(args, name, pathlib.Path(folder) / name)
                failed += [] if found[name]["pass"] else [name]
            except RuntimeError as error:
                found[name] = {"error_text": str(error)}
                failed.append(name)
                print(name, found[name], flush=True)
        report["programs"] = {name: found[name] for name in order if name in found}
        write_report(args, report)
    if failed:
        sys.exit(f"not as it should be: {', '.join(failed)}")


def torch_version():
    """torch's version; only the peers' processes import it."""
    from importlib import metadata
    try:
        return {"torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        return {"torch": "absent"}


def write_report(args, report):
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items() if key != "openvino")
    options = f"`orchestrion compile {args.options}`" if args.options else "`orchestrion compile`"
    tables = "".join(table(report, threads) for threads in args.threads)
    args.out.with_suffix(".md").write_text(
        f"# Programs of the Mirage paper on the CPU, f32, batch {BATCH}\n\n{about}; {options}; median of {args.rounds} "
        f"interleaved turns.\nWritten by `bench/programs.py`. Ratios above 1 mean that Orchestrion is faster. `kernels`: those "
        f"of Orchestrion, and how\nmany of them the superoptimizer found. `error`: largest error against f64, relative to the "
        f"largest magnitude.\n{tables}")


if __name__ == "__main__":
    main()
