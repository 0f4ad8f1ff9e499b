"""The commands of `scripts/fuzz-models.py`."""

import argparse
import pathlib
import shutil
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx

from . import kept, mutate, oracle, workers
from .draw import draw
from .judge import FAILURES, UNDECIDED, VERDICTS, Judgement, judge
from .minimise import Minimiser
from .operators import RECIPES
from .program import Program, runs_here

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "fuzz/models"
SEED_FILE = ROOT / "fuzz/seed"
# From so many graphs on, so many operators must have been in one; fewer graphs have twice the share of undecided ones by chance.
MANY_GRAPHS, LEAST_OPERATORS = 500, 120
UNDECIDED_SHARE, UNDECIDED_SHARE_OF_FEW = 0.03, 0.06
# Recipes that are not named for an operator.
NOT_OPERATORS = {"Bfloat16RoundTrip", "MixedTypes", "ReshapeToShapeOf", "SharedChain"}
MINIMISE_SECONDS = 120


def _program(args):
    out = pathlib.Path(args.out)
    (out / "cache").mkdir(parents=True, exist_ok=True)
    compile_only = not runs_here(args.target)
    if compile_only:
        print(f"note: this machine does not run {args.target}: models are compiled only")
    return Program(
        str(pathlib.Path(args.orchestrion).resolve()),
        args.target,
        (out / "cache").resolve(),
        args.time_limit,
        args.cc,
        compile_only,
    )


@dataclass
class Result:
    """What a worker hands back for one graph."""

    judgement: Judgement
    operators: Counter
    nodes: int = 0
    note: str = ""


def _one_graph(program, seed, index, failures):
    """Draws and judges one graph; a failure is made smaller and kept."""
    try:
        case = draw(seed, index)
        judgement = judge(program, case.model, case.inputs)
    except Exception:
        return Result(Judgement("script", traceback.format_exc(limit=-3)), Counter())
    note = ""
    if judgement.verdict in FAILURES:
        folder = failures / f"{judgement.verdict}_{seed}_{index}"
        kept.write(folder / "whole", case.model, case.inputs, [], judgement.why)
        try:
            smaller = Minimiser(program, case.model, case.inputs, judgement, MINIMISE_SECONDS)
            model, inputs, judgement = smaller.minimised()
        except Exception:
            return Result(Judgement("script", traceback.format_exc(limit=-3)), Counter())
        operators = " ".join(n.op_type for n in model.graph.node if n.op_type != "Constant")
        note = f"{operators[:120]}: {judgement.why}"
        whole = (folder / "whole").rename(failures / f".whole_{seed}_{index}")
        kept.write(folder, model, inputs, _expected(model, inputs), f"{judgement.verdict}, {program.target}: {note}")
        whole.rename(folder / "whole")
    elif judgement.verdict in (*UNDECIDED, "ort-odd"):
        kept.write(
            failures.parent / "undecided" / f"{judgement.verdict}_{seed}_{index}",
            case.model,
            case.inputs,
            [],
            judgement.why,
        )
    return Result(judgement, case.operators, len(case.model.graph.node), note)


def _expected(model, inputs):
    for evaluate in (oracle.onnxruntime_answer, oracle.reference_answer):
        try:
            return evaluate(model, inputs)
        except oracle.Refused:
            continue
    return []


def _run(args):
    program, started = _program(args), time.monotonic()
    failures = pathlib.Path(args.out) / "failures"
    counts, operators, nodes, listed = Counter(), Counter(), 0, []

    def report(index, result):
        nonlocal nodes
        verdict = result.judgement.verdict
        counts[verdict] += 1
        operators.update(result.operators.keys())
        nodes += result.nodes
        if verdict in (*FAILURES, *UNDECIDED, "script", "ort-crash", "unsupported"):
            line = f"{verdict} {args.seed}/{index}: {result.note or result.judgement.why}"
            listed.append(line)
            print(line, flush=True)
        done = sum(counts.values())
        if done % 50 == 0:
            print(f"  {done} of {args.graphs}, {time.monotonic() - started:.0f} s", flush=True)

    indices = range(args.first, args.first + args.graphs)
    workers.for_each(
        lambda index: _one_graph(program, args.seed, index, failures),
        indices,
        args.jobs,
        report,
        lambda index: Result(Judgement("ort-crash", "ONNX Runtime or the reference ended the process, or did not end"), Counter()),
    )
    return _summary(args, counts, operators, nodes, listed, time.monotonic() - started)


def _summary(args, counts, operators, nodes, listed, seconds):
    total = sum(counts.values())
    print(
        f"\n{total} graphs of seed {args.seed} for {args.target}, {nodes} nodes, {len(operators)} operators, {seconds:.0f} s"
    )
    for verdict in (*VERDICTS, "ort-crash", "script"):
        if counts[verdict]:
            print(f"  {verdict:16} {counts[verdict]:6}")
    for verdict in (*UNDECIDED, "ort-crash", "script", *FAILURES):
        for line in sorted(line for line in listed if line.startswith(f"{verdict} ")):
            print(line)
    bad = sum(counts[v] for v in FAILURES) + counts["script"]
    undecided = sum(counts[v] for v in UNDECIDED)
    problems = []
    if bad:
        problems.append(f"{bad} failures, kept in {args.out}/failures")
    if undecided > (UNDECIDED_SHARE if total >= MANY_GRAPHS else UNDECIDED_SHARE_OF_FEW) * total:
        problems.append(f"{undecided} of {total} graphs are undecided")
    if total >= MANY_GRAPHS and len(operators) < LEAST_OPERATORS:
        missing = {r.operator for r in RECIPES} - operators.keys() - NOT_OPERATORS
        problems.append(f"only {len(operators)} operators; missing: {', '.join(sorted(missing))}")
    for problem in problems:
        print(f"error: {problem}")
    return 1 if problems else 0


def _mutate(args):
    program, started = _program(args), time.monotonic()
    counts, listed = Counter(), []
    failures = pathlib.Path(args.out) / "failures"

    def one(index):
        try:
            data, origin = mutate.damaged(args.seed, index)
            ended = program.run(data, {})
        except Exception:
            return "script", traceback.format_exc(limit=-3)
        found = mutate.problem(ended, program)
        if found is None:
            return f"exit {ended.code}", ""
        kept.write_bytes(failures / f"mutant_{args.seed}_{index}", data, f"{found} ({origin})")
        return found.split(":")[0], f"{found} ({origin})"

    def report(index, result):
        counts[result[0]] += 1
        if result[1]:
            listed.append(f"{args.seed}/{index}: {result[1]}")
            print(listed[-1], flush=True)
        if sum(counts.values()) % 100 == 0:
            print(f"  {sum(counts.values())} of {args.models}, {time.monotonic() - started:.0f} s", flush=True)

    workers.for_each(
        one, range(args.first, args.first + args.models), args.jobs, report, lambda index: ("script", "worker died")
    )
    print(f"\n{sum(counts.values())} damaged models of seed {args.seed}, {time.monotonic() - started:.0f} s")
    for verdict, count in sorted(counts.items()):
        print(f"  {verdict:16} {count:6}")
    for line in listed:
        print(line)
    return 1 if listed else 0


def _keep(args):
    source, folder = pathlib.Path(args.case), KEPT / args.name
    if not (source / "model.onnx").exists():
        sys.exit(f"{source} has no model.onnx")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("whole"), dirs_exist_ok=True)
    print(f"kept as {folder.relative_to(ROOT)}; it fails in `replay` until the cause is mended")
    return 0


def _replay(args):
    program = _program(args)
    folders = sorted(f.parent for f in pathlib.Path(args.folder).glob("**/model.onnx") if f.parent.name != "whole")
    failed = 0
    for folder in folders:
        why = kept.replay(program, folder)
        failed += why is not None
        print(f"{'ok  ' if why is None else 'FAIL'} {folder.name}{'' if why is None else ': ' + why}", flush=True)
    print(f"{len(folders)} cases, {failed} fail")
    return 1 if failed else 0


def _show(args):
    """Prints one graph, and what is wrong with it."""
    case = draw(args.seed, args.index)
    print(onnx.printer.to_text(case.model))
    for name, array in case.inputs.items():
        print(name, array.dtype, array.shape, np.array2string(array, threshold=20).replace("\n", " "))
    print(judge(_program(args), case.model, case.inputs))
    return 0


def _arguments(words):
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--orchestrion", default=str(ROOT / "target/release/orchestrion"), metavar="BIN")
    common.add_argument("--target", default="x86-64-v3")
    common.add_argument(
        "--out", default=str(ROOT / "target/fuzz-models"), metavar="DIR", help="cache and failing cases"
    )
    common.add_argument("--jobs", type=int, default=1, metavar="J")
    common.add_argument("--time-limit", type=float, default=20, metavar="SECONDS", help="CPU time")
    common.add_argument("--cc", help="C compiler that Orchestrion calls")
    seed = int(SEED_FILE.read_text()) if SEED_FILE.exists() else 1
    seeded = argparse.ArgumentParser(add_help=False)
    seeded.add_argument("--seed", type=int, default=seed, help="default: what fuzz/seed says")
    seeded.add_argument("--first", type=int, default=0, metavar="K", help="number of the first graph")
    parser = argparse.ArgumentParser(prog="fuzz-models.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", parents=[common, seeded], help="random graphs (the default command)")
    command.add_argument("--graphs", type=int, default=200, metavar="N")
    command.set_defaults(call=_run)
    command = commands.add_parser("mutate", parents=[common, seeded], help="damaged models")
    command.add_argument("--models", type=int, default=1000, metavar="N")
    command.set_defaults(call=_mutate)
    command = commands.add_parser("show", parents=[common, seeded], help="one graph as text, and its verdict")
    command.add_argument("index", type=int)
    command.set_defaults(call=_show)
    command = commands.add_parser("keep", help="copies a failing case into fuzz/models")
    command.add_argument("case", metavar="DIR")
    command.add_argument("name", metavar="NAME")
    command.set_defaults(call=_keep)
    command = commands.add_parser("replay", parents=[common], help="runs kept cases")
    command.add_argument("folder", nargs="?", default=str(KEPT), metavar="DIR")
    command.set_defaults(call=_replay)
    if words and words[0] in ("-h", "--help"):
        return parser.parse_args(words)
    return parser.parse_args(words if words and words[0] in commands.choices else ["run", *words])


def main():
    """Runs the command that the arguments name."""
    args = _arguments(sys.argv[1:])
    sys.exit(args.call(args))
