"""The tables of the suite."""
from __future__ import annotations

import collections
import json
import os
import pathlib
import re

#: Rows of the tables of what took longest.
SLOWEST = 10


def write(out: pathlib.Path, results: dict) -> None:
    """OUT.json and OUT.md, each replaced as a whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(results, indent=1) + "\n"), (".md", markdown(results))):
        part = out.with_suffix(suffix + ".part")
        part.write_text(text)
        os.replace(part, out.with_suffix(suffix))


def sentence(row: dict) -> str:
    """A row in a line."""
    targets = [f"{target}: {_result(found)}, {found['compile_s']} s" for target, found in row["targets"].items()]
    problems = [f"{stage}: {why[:80]}" for stage, why in row["problems"].items()]
    return "; ".join([row["row"], *targets, *problems])


def _result(found: dict) -> str:
    if found["status"] != "compiled":
        return f"{found['status']} ({found['causes'][0][:80] if found['causes'] else found['exit_code']})"
    host = f", on the host {found['host']}" if found["host"] else ""
    exact = f", error {found['error']:.1e} / {found['peer_error']:.1e}" if found.get("error") is not None and found.get("peer_error") is not None else ""
    verdict = {True: ", right", False: ", WRONG", None: ""}[found.get("right")] + (f" ({found['run']})" if "run" in found else "")
    return f"{found['steps']} steps{host}{verdict}{exact}"


def markdown(results: dict) -> str:
    """The report as Markdown."""
    rows = results["rows"]
    lines = ["# The suite of models", "", "Written by `bench/suite/check.py`.", "",
             f"{results['machine']}; ONNX Runtime {results['onnxruntime']}; {_range(rows, 'date')}; commit",
             f"{_range(rows, 'commit')}. Random weights by a fixed seed. Errors are the largest of an output against torch in f64, relative to the",
             "output's largest magnitude. Compile times are of a cache that the models before have filled.", ""]
    lines += _summary(rows)
    lines += _causes(rows) + _host(rows) + _slowest(rows) + _table(rows)
    return "\n".join(lines) + "\n"


def _range(rows: list[dict], key: str) -> str:
    """The different values of a key."""
    return ", ".join(sorted({row[key] for row in rows}))


def _targets(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(target for row in rows for target in row["targets"]))


def _summary(rows: list[dict]) -> list[str]:
    exporters = collections.Counter(row["exporter"] or "none" for row in rows)
    lines = [f"{len(rows)} models; exported by {', '.join(f'{name}: {count}' for name, count in sorted(exporters.items()))}.", "",
             "| target | compiled | refused | failed | out of time | with host steps | right | wrong | not compared |", "|---" * 9 + "|"]
    for target in _targets(rows):
        found = [row["targets"][target] for row in rows if target in row["targets"]]
        status = collections.Counter(one["status"] for one in found)
        right = collections.Counter(one.get("right") for one in found if one["status"] == "compiled")
        cells = [target, *(status[name] for name in ("compiled", "refused", "failed", "out of time")),
                 sum(bool(one.get("host")) for one in found), right[True], right[False], right[None]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _causes(rows: list[dict]) -> list[str]:
    models = collections.defaultdict(set)
    for row in rows:
        for target, found in row["targets"].items():
            for cause in found.get("causes", []):
                models[f"{found['status']}: {cause}"].add(row["model"])
        for stage, why in row["problems"].items():
            if row["exporter"] is None:
                models[f"not exported, {stage}: {why}"].add(row["model"])
    if not models:
        return []
    lines = ["", "## What does not compile, by cause", "", "| cause | models |", "|---|---|"]
    return lines + [f"| {_text(cause)} | {', '.join(sorted(names))} |" for cause, names in sorted(models.items())]


def _text(message: str) -> str:
    """A message of a program in a cell of a table: at most a line of it, and no Markdown."""
    return re.sub(r"([|\[\]<>*_`])", r"\\\1", message.split("  [Caused by")[0][:200])


def _host(rows: list[dict]) -> list[str]:
    lines = [f"| {row['row']} | {target} | {', '.join(f'{count} x {step}' for step, count in found['host'].items())} |"
             for row in rows for target, found in row["targets"].items() if found.get("host")]
    return ["", "## Steps on the host", "", "| row | target | steps |", "|---|---|---|", *lines] if lines else []


def _slowest(rows: list[dict]) -> list[str]:
    lines = ["", "## Slowest compiles", "", "| row | target | seconds | MiB | steps |", "|---|---|---|---|---|"]
    found = [(one["compile_s"], row["row"], target, one) for row in rows for target, one in row["targets"].items()]
    for seconds, row, target, one in sorted(found, key=lambda each: -each[0])[:SLOWEST]:
        lines.append(f"| {row} | {target} | {seconds:.1f} | {one['peak_mib']} | {one.get('steps', one['status'])} |")
    return lines


def _table(rows: list[dict]) -> list[str]:
    targets = _targets(rows)
    heads = [f"{target}: {name}" for target in targets for name in ("steps", "modelled ms", "compile s", ".orc MB")]
    lines = ["", "## All rows", "", "| row | exporter | " + " | ".join(heads) + " | error | ONNX Runtime's | |", "|---" * (len(heads) + 5) + "|"]
    for row in rows:
        cells, errors = [row["row"], row["exporter"] or "none"], ["", "", ""]
        for target in targets:
            found = row["targets"].get(target, {"status": "", "compile_s": ""})
            if found["status"] == "compiled":
                host = f" ({sum(found['host'].values())} on the host)" if found["host"] else ""
                cells += [f"{found['steps']}{host}", f"{found['modelled_us'] / 1e3:.2f}", found["compile_s"], f"{found['orc_bytes'] / 1e6:.1f}"]
            else:
                cells += [found["status"], "", found["compile_s"], ""]
            if "right" in found:
                number = lambda key, found=found: "" if found.get(key) is None else f"{found[key]:.1e}"  # noqa: E731
                errors = [number("error"), number("peer_error"), {True: "", False: "WRONG", None: "not compared"}[found["right"]]]
        lines.append("| " + " | ".join(map(str, cells + errors)) + " |")
    return lines
