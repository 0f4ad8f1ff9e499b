#!/usr/bin/env python3
"""Runs the ONNX backend test cases of a release and compares what does not pass with the committed list.

    conformance.py VERSION [--update] [--every N] [--orchestrion PROGRAM] [-- MORE ARGUMENTS OF conformance]

docs/conformance/VERSION.txt names every case that does not pass and says why: something in it is not supported, or its
expectation is at fault. A case that does not pass without being listed is an error, and so is a listed case that passes.
A wrong answer or a failure is an error always, listed or not. `--update` writes the list. `--every N` runs every N-th
case only; listed cases that pass are not noticed then.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST_REASON = 160
NEVER_ACCEPTED = ("WRONG: ", "FAILED: ")


def run(program, folder, every, more):
    """The summary that `orchestrion conformance --json` prints; its exit code 5 only says that cases fail."""
    command = [program, "conformance", folder, "--json", "--quiet", "--every", str(every), *more]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode not in (0, 5):
        sys.exit(f"{' '.join(command)} ended with {result.returncode}")
    return json.loads(result.stdout)


def shortened(reason):
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON - 3] + "..."


def read(path):
    """Name -> reason of the cases in a list."""
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("version")
    args.add_argument("--update", action="store_true")
    args.add_argument("--every", type=int, default=1, metavar="N")
    args.add_argument("--orchestrion", default="target/release/orchestrion", metavar="PROGRAM")
    args.add_argument("more", nargs="*")
    args = args.parse_intermixed_args()
    folder = subprocess.run([ROOT / "scripts/onnx-cases.sh", args.version], stdout=subprocess.PIPE, text=True,
                            check=True).stdout.strip()
    summary = run(args.orchestrion, folder, args.every, args.more)
    failing = {name: shortened(reason) for name, reason in summary["not_passed"].items()}
    counts = ", ".join(f"{count} {what}" for what, count in summary.items() if isinstance(count, int))
    print(f"onnx {args.version}: {counts} ({100 * summary['passed'] / max(summary['cases'], 1):.1f} % pass)")
    path = ROOT / "docs/conformance" / f"{args.version}.txt"
    if args.update:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f"# Backend test cases of onnx {args.version} that do not pass ({counts}).\n" \
               f"# Written by: scripts/conformance.py {args.version} --update\n"
        path.write_text(head + "".join(f"{name}: {failing[name]}\n" for name in sorted(failing)))
    listed = read(path)
    bad = sorted(name for name, reason in failing.items() if reason.startswith(NEVER_ACCEPTED))
    new = sorted(failing.keys() - listed.keys() - set(bad))
    stale = sorted(listed.keys() - failing.keys()) if args.every == 1 and not args.more else []
    for name in bad:
        print(f"{name}: {failing[name]}")
    for name in new:
        print(f"does not pass and is not listed: {name}: {failing[name]}")
    for name in stale:
        print(f"is listed and passes: {name}")
    if bad:
        sys.exit(f"{len(bad)} cases have wrong answers or fail; mend the cause")
    if new or stale:
        sys.exit(f"{path.relative_to(ROOT)} does not agree; mend the cause, or list what is meant with --update")


main()
