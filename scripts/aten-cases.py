#!/usr/bin/env python3
"""Writes the cases of `crates/orch-aten/tests/files`: small graphs of ATen calls with inputs and what eager gives.

Usage: scripts/aten-cases.py [--only TARGET]

Needs PyTorch (CPU). Each file has the cases of one target, or of one traced module; each case a document, the values of
its inputs, and those of its outputs. Cases are repeatable: inputs come from a generator with a fixed seed.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from aten_cases import calls, modules, writer  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates/orch-aten/tests/files"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="write files whose names contain this")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {**calls.cases(arguments.only), **modules.cases(arguments.only)}
    for name, cases in sorted(files.items()):
        writer.write(FOLDER / f"{name}.json", cases)
    if not arguments.only:
        for stale in {path.stem for path in FOLDER.glob("*.json")} - files.keys():
            (FOLDER / f"{stale}.json").unlink()
        missing = writer.support.targets() - {name for name in files}
        if missing:
            print("no cases for:", ", ".join(sorted(missing)))
    print(f"{len(files)} files, {sum(map(len, files.values()))} cases")


if __name__ == "__main__":
    main()
