#!/usr/bin/env python3
"""How exact the results are: Orchestrion's and ONNX Runtime's f32 against the reference interpreter in f64.

    accuracy.py [NAME ...] [--out bench/results/accuracy]

The figure per model is the largest absolute error over all elements of an output, divided by the output's largest
magnitude, and the largest of these over its outputs. For `minilm` the check of `sentences.py` is made too.

Writes OUT.json and OUT.md. Fails if an error is above the tolerance of `orchestrion verify` or more than 4 times ONNX
Runtime's, or the sentences disagree. With NAMEs and an existing OUT.json the other models' figures are kept.
"""
import argparse
import datetime
import json
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

import sentences
import zoo

# How much larger than ONNX Runtime's error ours may be; below half a unit in the last place nothing is compared.
FACTOR = 4
NEGLIGIBLE = 2.0**-24


def file_name(output):
    """The file that `orchestrion` gives an output."""
    return re.sub(r"[^\w.-]", "_", output) + ".npy"


def verify(program, folder, scratch):
    """What `orchestrion verify` finds; the f64 outputs are left in `scratch`. Exit code 5 says that a check failed."""
    command = [program, "verify", folder / "model.onnx", "--input-dir", folder / "test_data_set_0",
               "--save-reference", scratch, "--json", "--quiet"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode not in (0, 5):
        raise RuntimeError(f"verify: exit code {result.returncode}")
    return json.loads(result.stdout)


def scaled_error(got, want):
    """The figure of `verify`: largest absolute difference of finite elements over the largest finite magnitude."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(want)
    error = np.abs(got - want)[finite].max(initial=0)
    return float(error / max(np.abs(want[finite]).max(initial=0), 1e-30)) if error else 0.0


def peer_error(folder, scratch):
    """ONNX Runtime's figure against the same reference."""
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    fed = dict(zip((port.name for port in session.get_inputs()), zoo.inputs(folder)))
    references = [np.load(scratch / file_name(name)) for name in names]
    return max(map(scaled_error, session.run(names, fed), references))


def machine():
    """The processor's name."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


def setting():
    """What the figures hold for."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*"], cwd=zoo.ROOT, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    return {"machine": machine(), "onnxruntime_version": onnxruntime.__version__, "commit": commit,
            "date": datetime.date.today().isoformat()}


def measure(program, folder):
    """Both figures of a model, and whether they will do."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        found = verify(program, folder, scratch)
        peer = peer_error(folder, scratch)
    own = max(row["max_scaled"] for row in found["outputs"])
    row = {"orchestrion": own, "onnxruntime": peer,
           "pass": found["pass"] and own <= max(FACTOR * peer, NEGLIGIBLE), **setting()}
    if folder.name == "minilm":
        row["sentences"] = sentences.check(program, folder)
        row["pass"] &= row["sentences"]["pass"]
    return row


def table(report):
    """The report as Markdown."""
    lines = ["# Largest error against f64, relative to the output's largest magnitude\n",
             "Written by `bench/accuracy.py`.\n",
             "| model | Orchestrion | ONNX Runtime | ratio | |", "|---|---|---|---|---|"]
    for name, row in report.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | | | FAILED |")
            continue
        own, peer = row["orchestrion"], row["onnxruntime"]
        ratio = f"{own / peer:.2f}" if peer else ""
        lines.append(f"| {name} | {own:.1e} | {peer:.1e} | {ratio} | {'' if row['pass'] else 'FAILED'} |")
    lines += [f"\nminilm: {sentences.sentence(row['sentences'])}." for row in report.values() if "sentences" in row]
    settings = {tuple(row[key] for key in ("machine", "onnxruntime_version", "commit", "date"))
                for row in report.values() if "machine" in row}
    lines += [f"\n{machine}; onnxruntime {version}; commit {commit}; {date}."
              for machine, version, commit, date in sorted(settings)]
    return "\n".join(lines) + "\n"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME")
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/accuracy")
    args = args.parse_args()
    program = args.orchestrion or zoo.build()
    stored = args.out.with_suffix(".json")
    report = json.loads(stored.read_text()) if args.names and stored.exists() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for folder in zoo.folders(args.names):
        try:
            row = measure(program, folder)
        except RuntimeError as error:
            row = {"error": str(error), "pass": False}
        report[folder.name] = row
        if not row["pass"]:
            failed.append(folder.name)
        report = dict(sorted(report.items()))
        stored.write_text(json.dumps(report, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(table(report))
        print(folder.name, {key: row[key] for key in ("error", "orchestrion", "onnxruntime", "pass") if key in row},
              flush=True)
    sys.exit(f"not exact enough: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
