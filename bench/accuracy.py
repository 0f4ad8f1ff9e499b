#!/usr/bin/env python3
"""How exact the results are: Orchestrion's and ONNX Runtime's f32 against the reference interpreter in f64.

    accuracy.py [NAME ...] [--out bench/results/accuracy]

The figure per model is the largest absolute error over all elements of an output, divided by the output's largest
magnitude, and the largest of these over its outputs. For `minilm` the embeddings of 16 sentences must also agree with
ONNX Runtime's to 1e-4, and each sentence's nearest neighbour must be its paraphrase.

Writes OUT.json and OUT.md; fails if an error is above the tolerance of `orchestrion verify` or the sentences disagree.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

import zoo

SENTENCES = 16
SENTENCE_TOLERANCE = 1e-4


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


def sentences(program, folder, scratch):
    """Agreement of embeddings with the stored ones, and whether paraphrases are nearest neighbours."""
    artifact = scratch / "minilm.orc"
    subprocess.run([program, "compile", folder / "model.onnx", "-o", artifact, "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    got, want = [], []
    for number in range(1, SENTENCES + 1):
        data = folder / f"test_data_set_{number}"
        subprocess.run([program, "run", artifact, "--input-dir", data, "--output-dir", scratch], check=True,
                       stdout=subprocess.DEVNULL)
        got.append(np.load(scratch / "output.npy")[0])
        want.append(zoo.tensor(data / "output_0.pb")[0])
    got, want = np.array(got), np.array(want)
    unit = got / np.linalg.norm(got, axis=1, keepdims=True)
    cosine = unit @ unit.T - 2 * np.eye(SENTENCES)
    paired = int((cosine.argmax(1) == np.arange(SENTENCES) ^ 1).sum())
    return {"largest_difference": float(np.abs(got - want).max()), "paired": paired}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("names", nargs="*", metavar="NAME")
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args.add_argument("--out", type=pathlib.Path, default=zoo.ROOT / "bench/results/accuracy")
    args = args.parse_args()
    program, report, passed = args.orchestrion or zoo.build(), {}, True
    lines = ["# Largest error against f64, relative to the output's largest magnitude\n",
             "Written by `bench/accuracy.py`.\n", "| model | Orchestrion | ONNX Runtime |", "|---|---|---|"]
    notes = []
    for folder in zoo.folders(args.names):
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            try:
                found = verify(program, folder, scratch)
            except RuntimeError as error:
                report[folder.name], passed = {"error": str(error)}, False
                lines.append(f"| {folder.name} | {error} | |")
                continue
            own, peer = max(row["max_scaled"] for row in found["outputs"]), peer_error(folder, scratch)
            report[folder.name] = {"orchestrion": own, "onnxruntime": peer, "pass": found["pass"]}
            passed &= found["pass"]
            lines.append(f"| {folder.name} | {own:.1e}{'' if found['pass'] else ' FAILED'} | {peer:.1e} |")
            if folder.name == "minilm":
                check = report[folder.name]["sentences"] = sentences(program, folder, scratch)
                passed &= check["largest_difference"] <= SENTENCE_TOLERANCE and check["paired"] == SENTENCES
                notes.append(f"\n{check['paired']} of {SENTENCES} sentences have their paraphrase as nearest neighbour; "
                             f"embeddings differ from ONNX Runtime's by at most {check['largest_difference']:.1e}.")
        print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    args.out.with_suffix(".md").write_text("\n".join(lines + notes) + "\n")
    sys.exit(0 if passed else "the tolerance is exceeded")


main()
