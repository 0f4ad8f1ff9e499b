#!/usr/bin/env python3
"""Latency of whole models on the CPU: Orchestrion, ONNX Runtime and OpenVINO, all in f32, with the same threads.

    cpu.py [NAME ...] [--threads 1 2] [--rounds 24] [--out bench/results/cpu]
    cpu.py --sample SEED,EACH --out FILE ..

Each engine runs in a process of its own that stays alive, bound to the same CPUs. They take turns: a round is one
turn of each, in rotating order, and a turn is as many runs as fill 50 ms (at least one) after a pause in which the
threads of the one before come to rest. A turn counts as the median of its runs, an engine as the median of its turns.
Memory is the process's largest resident set, less what Python and the peer's library held before loading the model.

With --sample the models are not those of the zoo, but EACH of every stratum of `bench/suite`, of batch 1, drawn by a seed.

Writes OUT.json (every turn) and OUT.md (the tables).
"""
import argparse
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import zoo

sys.path.insert(0, str(zoo.ROOT / "bench/suite"))
import draw  # noqa: E402

ENGINES = ("orchestrion", "onnxruntime", "openvino")
PEERS = ENGINES[1:]
TURN_MS = 50.0
PAUSE_SECONDS = 0.05
MOST_RUNS = 2000


class Engine:
    """A process that runs one model on request."""

    def __init__(self, name, command, cpus):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        words = self.process.stdout.readline().split()
        if not words or words[0] != "ready":
            raise RuntimeError(f"{name} did not start: exit code {self.process.wait()}")
        self.base_kib = int(words[1]) if len(words) > 1 else 0
        first_ms = statistics.median(self.times_ms(3))
        self.runs = max(1, min(MOST_RUNS, math.ceil(TURN_MS / first_ms)))

    def times_ms(self, runs):
        self.process.stdin.write(f"run {runs}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} failed: exit code {self.process.wait()}")
        return [float(word) for word in line.split()]

    def turn_ms(self):
        time.sleep(PAUSE_SECONDS)
        return statistics.median(self.times_ms(self.runs))

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return (int(status.split("VmHWM:")[1].split()[0]) - self.base_kib) / 1024

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def command(engine, folder, artifact, program, threads):
    if engine == "orchestrion":
        data = folder / "test_data_set_0"
        return [program, "bench", artifact, "--serve", "--threads", str(threads), "--input-dir", data]
    return [sys.executable, zoo.ROOT / "bench/peer.py", engine, folder, str(threads)]


def measure(folder, artifact, program, threads, rounds):
    """Turns and memory of each engine on one model, without peers that fail on it."""
    commands = {engine: command(engine, folder, artifact, program, threads) for engine in ENGINES}
    return race_able(commands, PEERS, folder.name, threads, rounds)


def race_able(commands, peers, label, threads, rounds):
    """Turns and memory of each command, by name, without those of `peers` that fail."""
    while True:
        try:
            return race(commands, threads, rounds)
        except RuntimeError as problem:
            failed = str(problem).split(" ", 1)[0]
            if failed not in peers or failed not in commands:
                raise
            print(f"{label}: {problem}", file=sys.stderr)
            commands = {name: command for name, command in commands.items() if name != failed}


def race(commands, threads, rounds):
    """Turns and memory of each command, by name."""
    cpus = set(sorted(os.sched_getaffinity(0))[:threads])
    names, engines = tuple(commands), {}
    try:
        for engine in names:
            engines[engine] = Engine(engine, commands[engine], cpus)
        turns = {engine: [] for engine in names}
        for number in range(rounds):
            first = number % len(names)
            for engine in names[first:] + names[:first]:
                turns[engine].append(engines[engine].turn_ms())
        peaks = {engine: engines[engine].peak_mib() for engine in names}
    finally:
        for engine in engines.values():
            engine.close()
    medians = {engine: statistics.median(turns[engine]) for engine in names}
    return {"ms": medians, "peak_mib": peaks, "turns_ms": turns}


def verified(program, folder, artifact):
    """The largest error of an executable's outputs against f64, relative to an output's largest magnitude, and whether
    `orchestrion verify` allows it: exit code 5 says that it does not."""
    command = [program, "verify", artifact, "--input-dir", folder / "test_data_set_0", "--json", "--quiet",
               "--onnx", folder / "model.onnx"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 5):
        raise RuntimeError(f"verify: exit code {done.returncode}")
    report = json.loads(done.stdout)
    return {"error": max(output["max_scaled"] for output in report["outputs"]), "pass": report["pass"]}


def ratios(result, peers=PEERS):
    """How many times longer each peer, and the best of them, takes."""
    ms = result["ms"]
    found = {peer: ms[peer] / ms["orchestrion"] for peer in peers if peer in ms}
    return found | {"best": min(found.values())}


def table(models, threads):
    """The Markdown table of one thread count."""
    lines = [
        f"\n## {threads} thread{'s' if threads > 1 else ''}\n",
        "| model | Orchestrion ms | ONNX Runtime ms | OpenVINO ms | vs ONNX Runtime | vs OpenVINO | vs best "
        "| Orchestrion MiB | ONNX Runtime MiB | OpenVINO MiB |",
        "|---|---" + "|---" * 8 + "|",
    ]
    seen = []
    for name, by_threads in models.items():
        result = by_threads[str(threads)]
        if "error" in result:
            lines.append(f"| {name} | {result['error']} |" + " |" * 8)
            continue
        seen.append(ratios(result))
        times = [f"{result['ms'][engine]:.4g}" if engine in result["ms"] else "failed" for engine in ENGINES]
        factors = [f"{seen[-1][key]:.2f}" if key in seen[-1] else "" for key in (*PEERS, "best")]
        memory = [f"{result['peak_mib'][engine]:.0f}" if engine in result["ms"] else "" for engine in ENGINES]
        lines.append(f"| {name} | " + " | ".join(times + factors + memory) + " |")
    if seen:
        columns = [[row[key] for row in seen if key in row] for key in (*PEERS, "best")]
        means = [f"**{statistics.geometric_mean(column):.2f}**" if column else "" for column in columns]
        lines.append("| **geometric mean** | | | | " + " | ".join(means) + " | | | |")
        wins = sum(row["best"] >= 1 for row in seen)
        lines.append(f"\nAt least as fast as the best peer on {wins} of {len(seen)} models.")
    return "\n".join(lines) + "\n"


def sampled(seed, each, scratch):
    """Folders of models of the suite, drawn by a seed; models that cannot be exported are named and left out."""
    for row in map(str, draw.stratified(seed, each, batch=1)):
        folder = pathlib.Path(scratch) / row.replace("/", "_")
        folder.mkdir()
        prepare = [sys.executable, zoo.ROOT / "bench/suite/prepare.py", row, folder, "--no-reference"]
        told = subprocess.run(prepare, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True).stderr
        if (folder / "model.onnx").exists():
            yield folder
            shutil.rmtree(folder)
        else:
            print(f"{row}: not exported: {told.strip().splitlines()[-1:]}", file=sys.stderr)


def machine():
    import onnxruntime
    import openvino
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=zoo.ROOT, stdout=subprocess.PIPE, text=True)
    return {
        "cpu": names[0] if names else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "onnxruntime": onnxruntime.__version__,
        "openvino": openvino.__version__,
        "orchestrion": commit.stdout.strip(),
    }


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME")
    args.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args.add_argument("--rounds", type=int, default=24)
    args.add_argument("--sample", metavar="SEED,EACH", help="models of the suite instead of the zoo's")
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/cpu")
    args = args.parse_args()
    program, report = args.orchestrion or zoo.build(), {"machine": machine(), "rounds": args.rounds, "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folders = sampled(*map(int, args.sample.split(",")), scratch) if args.sample else zoo.folders(args.names)
        for folder in folders:
            artifact = pathlib.Path(scratch) / f"{folder.name}.orc"
            compiled = subprocess.run([program, "compile", folder / "model.onnx", "-o", artifact, "--quiet"],
                                      stdout=subprocess.DEVNULL)
            results = report["models"][folder.name] = {}
            for threads in args.threads:
                try:
                    if compiled.returncode:
                        raise RuntimeError(f"compile: exit code {compiled.returncode}")
                    results[str(threads)] = measure(folder, artifact, program, threads, args.rounds)
                    shown = {engine: round(ms, 4) for engine, ms in results[str(threads)]["ms"].items()}
                except RuntimeError as error:
                    shown = results[str(threads)] = {"error": str(error)}
                print(folder.name, threads, shown, flush=True)
            artifact.unlink(missing_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    tables = "".join(table(report["models"], threads) for threads in args.threads)
    args.out.with_suffix(".md").write_text(
        f"# Latency of whole models, f32, batch 1\n\n{about}; median of {args.rounds} interleaved turns.\n"
        f"Written by `bench/cpu.py`. Ratios above 1 mean that Orchestrion is faster.\n{tables}")


if __name__ == "__main__":
    main()
