#!/usr/bin/env python3
"""Models of torchvision, timm and transformers through both exporters of PyTorch: do they compile, and compute what they should?

    check.py [--seed S --count N] [--target cpu@f32 --target cuda:sm_90@f16 ..] [--orchestrion PROGRAM] [--nvrtc FILE] [--out FILE]
    check.py --models NAME[@BATCH,SIZE,EXPORTER] ..

A third of the models of `draw.py` always runs; N more are drawn by the seed, and so are their batch (1, 8, 32), one of two sizes of
the input, and the exporter that is tried first. Each is exported and compiled in processes with limits of time and memory; a model
that cannot be exported is a row like others. Models compiled for CPUs are run, and compared with torch in f64 and with ONNX Runtime.

Writes OUT.json and OUT.md after each row; rows that are there already stay, and with --resume they are not repeated. The exit code
is 1 if a result is wrong, the compiler takes too long or fails other than by refusing a model, or a step runs on the host that is
not in `host_steps.txt`.
"""
from __future__ import annotations

import argparse
import collections
import datetime
import json
import pathlib
import re
import sys
import tempfile

import numpy as np

import draw
import elsewhere
import judge
import limited
import report

contest = elsewhere.load("bench/gpu", "contest")
zoo = elsewhere.load("bench", "zoo")

HERE = pathlib.Path(__file__).resolve().parent
#: What the command answers about a model that needs what is not supported.
REFUSED = 3


def host_exceptions() -> list[list[str]]:
    """Model, target and operator of each exception."""
    lines = (HERE / "host_steps.txt").read_text().splitlines()
    return [line.split()[:3] for line in lines if line.strip() and not line.startswith("#")]


def is_excepted(exceptions, model: str, target: str, step: str) -> bool:
    return any(names in (model, "*") and targets in (target, "*") and operator in step.split("+") for names, targets, operator in exceptions)


def causes(stderr: str) -> list[str]:
    """The causes of a refusal, without the places where they occur."""
    lines = [re.sub(r"^error: ", "", line.strip()) for line in stderr.splitlines() if line.strip() and not line.startswith("note:")]
    lines = [re.sub(r" \(and \d+ more such places?\)$", "", line) for line in lines]
    return [re.sub(r"^\S.*? \((\w+)\): ", r"\1: ", line)[:300] for line in lines[:20]]


def plan(manifest: dict) -> dict:
    """What is told of a plan."""
    host = collections.Counter()
    for step in manifest["steps"]:
        action = step["action"]
        if isinstance(action, dict) and "host" in action:
            kinds = sorted({match[1] for origin in step["origins"] if (match := re.search(r"\((\w+)\)$", origin))})
            host["+".join(kinds) or step["name"]] += 1
    modelled = [step["cost_us"] for step in manifest["steps"] if step["cost_us"]]
    return {"steps": len(manifest["steps"]), "kernels": len(manifest["kernels"]), "host": dict(host),
            "found": sum(step["proof"] is not None for step in manifest["steps"]), "modelled_us": round(sum(modelled), 1)}


class Check:
    """The rows of one run."""

    def __init__(self, args):
        self.args, self.exceptions = args, host_exceptions()

    def limited(self, *command, seconds=None) -> limited.Outcome:
        return limited.run(list(command), seconds or self.args.limit_s, self.args.limit_mib)

    def program(self, *words, seconds=None) -> limited.Outcome:
        return self.limited(self.args.orchestrion, *words, "--quiet", seconds=seconds)

    def row(self, row: draw.Row) -> dict:
        """All that is found out about one row."""
        found = {"row": str(row), "model": row.model, "batch": row.batch, "size": row.size}
        with tempfile.TemporaryDirectory(prefix="suite-") as folder:
            folder = pathlib.Path(folder)
            unjudged = [] if any(target == "cpu" for target, _ in self.args.target) else ["--no-reference"]
            made = self.limited(sys.executable, HERE / "prepare.py", row, folder, *unjudged, seconds=self.args.export_limit_s)
            try:
                found |= json.loads(made.stdout.splitlines()[-1])
            except (IndexError, ValueError):
                why = "out of time" if made.timed_out else (made.stderr.strip().splitlines() or [f"exit code {made.exit_code}"])[-1]
                found |= {"exporter": None, "problems": {"export": why[:300]}}
            found["export_s"] = round(made.seconds, 1)
            found["targets"] = {}
            for target, precision in self.args.target if found["exporter"] else []:
                found["targets"][f"{target} {precision}"] = self.target(row, folder, target, precision)
        return found

    def target(self, row: draw.Row, folder: pathlib.Path, target: str, precision: str) -> dict:
        """How a model compiles for a target, and what it computes."""
        artifact, cuda = folder / "model.orc", target.startswith("cuda")
        further = ["--nvrtc", self.args.nvrtc] if cuda and self.args.nvrtc else []
        made = self.program("compile", folder / "model.onnx", "--target", target, "--precision", precision, "--cache-dir",
                            self.args.cache_dir, *further, "-o", artifact)
        found = {"compile_s": round(made.seconds, 2), "peak_mib": made.peak_mib}
        if made.timed_out or made.exit_code:
            found["status"] = "out of time" if made.timed_out else "refused" if made.exit_code == REFUSED else "failed"
            found["exit_code"], found["causes"] = made.exit_code, causes(made.stderr)
            return found
        found |= {"status": "compiled", "orc_bytes": artifact.stat().st_size}
        manifest = contest.manifest_of(self.args.orchestrion, artifact)
        found |= plan(manifest)
        found["unexpected_host"] = [step for step in found["host"] if not is_excepted(self.exceptions, row.model, target, step)]
        if target == "cpu":
            found |= self.outputs(folder, artifact, manifest, precision)
        artifact.unlink()
        return found

    def outputs(self, folder: pathlib.Path, artifact: pathlib.Path, manifest: dict, precision: str) -> dict:
        """What running the executable shows."""
        ran = self.limited(self.args.orchestrion, "run", artifact, "--input-dir", folder / "test_data_set_0", "--output-dir", folder / "out")
        if ran.timed_out or ran.exit_code:
            return {"right": False, "run": "out of time" if ran.timed_out else ran.stderr.strip()[:300] or f"exit code {ran.exit_code}"}
        files = [folder / "out" / judge.accuracy.file_name(port["name"]) for port in manifest["outputs"]]
        return judge.judge([np.load(file) for file in files], folder, precision)


def is_wrong(row: dict) -> bool:
    """True of a row that makes the exit code 1."""
    return any(found["status"] in ("failed", "out of time") or found.get("right") is False or found.get("unexpected_host") for found in row["targets"].values())


def stated_target(text: str) -> tuple[str, str]:
    target, _, precision = text.partition("@")
    return target, precision or ("f16" if target.startswith("cuda") else "f32")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0, help="models that are drawn besides the fixed ones")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="instead of those of the seed")
    parser.add_argument("--target", action="append", type=stated_target, metavar="NAME[@PRECISION]", help="default: cpu and cuda:sm_90")
    parser.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    parser.add_argument("--nvrtc", help="NVRTC's library; without one where the system has it")
    parser.add_argument("--cache-dir", type=pathlib.Path, help="default: one that is empty at first")
    parser.add_argument("--limit-s", type=float, default=300, help="seconds to compile or to run one model")
    parser.add_argument("--export-limit-s", type=float, default=300)
    parser.add_argument("--limit-mib", type=int, default=12000)
    parser.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/suite")
    parser.add_argument("--commit", default=judge.accuracy.setting()["commit"], help="what is checked, for the report")
    parser.add_argument("--resume", action="store_true", help="keep rows that are there already")
    return parser.parse_args()


def main() -> None:
    args = options()
    args.orchestrion = args.orchestrion or zoo.build()
    args.target = args.target or [("cpu", "f32"), ("cuda:sm_90", "f16")]
    stored = args.out.with_suffix(".json")
    rows = {row["row"]: row for row in json.loads(stored.read_text())["rows"]} if stored.exists() else {}
    wanted = [draw.row(name, args.seed) for name in args.models] if args.models else draw.rows(args.seed, args.count)
    with tempfile.TemporaryDirectory(prefix="suite-cache-") as cache:
        args.cache_dir = args.cache_dir or pathlib.Path(cache)
        check = Check(args)
        for row in wanted:
            if args.resume and str(row) in rows:
                continue
            rows[str(row)] = found = check.row(row) | {"date": datetime.date.today().isoformat(), "commit": args.commit}
            setting = {"machine": judge.accuracy.machine(), "onnxruntime": judge.accuracy.onnxruntime.__version__}
            report.write(args.out, {**setting, "rows": list(rows.values())})
            print("WRONG" if is_wrong(found) else "ok   " if found["targets"] else "none ", report.sentence(found), flush=True)
    failed = [str(row) for row in wanted if is_wrong(rows[str(row)])]
    sys.exit(f"wrong: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
