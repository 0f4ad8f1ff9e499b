#!/usr/bin/env python3
"""A stratified sample of the suite on a GPU, beside torch on the same device in the same run.

    times.py [--seed S --each N] [--precision f16|bf16|tf32|f32] [--options WORDS] [--orchestrion PROGRAM] [--out FOLDER]
    times.py --models NAME[@BATCH,SIZE,EXPORTER] ..
    times.py --dry-run ..

N models of each stratum of `draw.py` are drawn by the seed: those of torchvision, of timm, and of transformers the ones of text, of
images, of sound, and of images with text. Peers are `eager` and `inductor` (torch.compile without CUDA graphs of its own), each
captured in a CUDA graph by hand. All take turns, in rounds; a time is the median over all rounds. `device` is the time of a replay by
the device's clock, `wall` that from the call until the host knows of the end; inputs and outputs are on the device, the cache is
warm. `error` is the largest absolute error against torch in f64, relative to the largest magnitude, beside that of eager.

With --out, rows are added to FOLDER/suite-gpu.json (those of the same row, device and precision are replaced), and FOLDER/suite-gpu.md
is written from it; --report does only the latter. --dry-run needs no GPU: it exports, compiles for cuda:sm_90, and prints the plans.
"""
import json
import math
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import draw
import elsewhere

contest = elsewhere.load("bench/gpu", "contest")

ROUNDS, RUNS = 12, 10
CLOCKS = ("device", "wall")
PEERS = ("eager", "inductor")


def options():
    parser = contest.arguments(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=3, help="models of each stratum")
    parser.add_argument("--models", nargs="+", metavar="NAME")
    parser.add_argument("--batch", type=int, help="of all models that are drawn (default: by the seed)")
    parser.add_argument("--precision", default="f16", choices=["f16", "bf16", "tf32", "f32"])
    parser.add_argument("--modes", default=",".join(PEERS), help="peers")
    return contest.parsed(parser)


def wanted(o):
    """The rows that are timed."""
    if o.models:
        return [draw.row(name, o.seed) for name in o.models]
    return draw.stratified(o.seed, o.each, o.batch)


class Captured:
    """A function of torch in a CUDA graph, by one of the clocks."""

    def __init__(self, torch, function, inputs):
        self.torch = torch
        self.graph, self.kept = contest.captured(torch, function, [inputs])

    def device_ms(self, runs):
        return contest.replays_ms(self.torch, self.graph, runs, lambda: None)

    def wall_ms(self, runs):
        found = []
        for _ in range(runs):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            self.graph.replay()
            self.torch.cuda.synchronize()
            found.append((time.perf_counter() - start) * 1e3)
        return found

    def end(self):
        self.graph = self.kept = None


class Own:
    """Orchestrion, in a process for each clock."""

    def __init__(self, program, artifact, files):
        self.served = {"device": contest.Served(program, artifact, files, "--device-only"), "wall": contest.Served(program, artifact, files)}

    def device_ms(self, runs):
        return self.served["device"].times_ms(runs)

    def wall_ms(self, runs):
        return self.served["wall"].times_ms(runs)

    def end(self):
        for served in self.served.values():
            served.end()


def interleaved(runners):
    """Median milliseconds by clock and runner."""
    found = {clock: {name: [] for name in runners} for clock in CLOCKS}
    for _ in range(ROUNDS):
        for name, runner in runners.items():
            found["device"][name] += runner.device_ms(RUNS)
            found["wall"][name] += runner.wall_ms(RUNS)
    for runner in runners.values():
        runner.end()
    return {clock: {name: round(statistics.median(times), 4) for name, times in by_name.items()} for clock, by_name in found.items()}


def error(found, exact):
    """The largest error over outputs."""
    pairs = [(got.double().cpu().numpy(), want.double().cpu().numpy()) for got, want in zip(found, exact) if want.is_floating_point()]
    return max((contest.error_of(got, want) for got, want in pairs), default=0.0)


def compiled(o, row, folder):
    """Exports and compiles a row: its figures, the artifact, and the model."""
    import models
    import prepare

    built, problems = models.build(row.model, row.batch, draw.SIZES[row.size]), {}
    order = [row.exporter, *(exporter for exporter in draw.EXPORTERS if exporter != row.exporter)]
    found = {"row": str(row), "precision": o.precision, "exporter": prepare.export(built, order, folder / "model.onnx", problems)}
    if found["exporter"] is None:
        raise RuntimeError("; ".join(problems.values()))
    artifact = folder / "model.orc"
    seconds = contest.compile_model(o.orchestrion, folder / "model.onnx", artifact, o.target, o.precision, *o.options.split())
    steps = contest.steps_of(contest.manifest_of(o.orchestrion, artifact))
    found |= {"compile_s": round(seconds, 1), "steps": len(steps), "found": sum(step["found"] for step in steps),
              "modelled_ms": round(sum(step["modelled_us"] for step in steps) / 1e3, 4)}
    return found, steps, artifact, built


def own_outputs(o, artifact, files, folder):
    """What Orchestrion computes, as tensors of torch."""
    import subprocess

    import numpy as np
    import torch

    accuracy = elsewhere.load("bench", "accuracy")
    subprocess.run([o.orchestrion, "run", artifact, *contest.given(files), "--output-dir", folder / "out"], check=True, stdout=subprocess.DEVNULL)
    ports = contest.manifest_of(o.orchestrion, artifact)["outputs"]
    return [torch.from_numpy(np.load(folder / "out" / accuracy.file_name(port["name"]))) for port in ports]


def measure(o, torch, row, folder):
    """Times and errors of one row."""
    import numpy as np
    import onnx

    found, _, artifact, built = compiled(o, row, folder)
    taken = {port.name for port in onnx.load(folder / "model.onnx", load_external_data=False).graph.input}
    files = {name: f"{folder}/{name}.npy" for name in built.inputs if name in taken}
    for name, file in files.items():
        np.save(file, built.inputs[name].numpy())
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(o.precision, torch.float32)
    as_type = lambda kind: [tensor.to("cuda", kind) if tensor.is_floating_point() else tensor.cuda() for tensor in built.inputs.values()]  # noqa: E731
    with torch.inference_mode():
        model = built.model.to("cuda", torch.float64)
        try:
            exact = model(*as_type(torch.float64))
        except RuntimeError:
            # Models with types of their own inside are compared with torch in f32.
            model = model.float()
            exact = model(*as_type(torch.float32))
        found["error"] = error(own_outputs(o, artifact, files, folder), exact)
        model, inputs, runners = model.to(dtype), as_type(dtype), {"orchestrion": Own(o.orchestrion, artifact, files)}
        found["errors"] = {}
        for mode in o.modes.split(","):
            try:
                torch._dynamo.reset()
                function = model if mode == "eager" else torch.compile(model, dynamic=False)
                found["errors"][mode] = error(function(*inputs), exact)
                runners[mode] = Captured(torch, function, inputs)
            except Exception as problem:  # noqa: BLE001 - a peer that fails has no time
                found["errors"][mode] = "error: " + (str(problem).splitlines() or [type(problem).__name__])[0][:60]
        found |= interleaved(runners)
    return found


def best(row, clock):
    """The fastest peer's time over Orchestrion's."""
    peers = [time for name, time in row[clock].items() if name != "orchestrion"]
    return min(peers) / row[clock]["orchestrion"] if peers else None


def write_report(folder):
    """suite-gpu.md from suite-gpu.json."""
    lines = ["# Models of the suite on a GPU", "", "Written by `bench/suite/times.py`. Milliseconds, medians of interleaved rounds; torch in CUDA graphs captured by hand. Ratios",
             "above 1 mean that Orchestrion is faster than the best peer. Errors are against torch in f64, relative to the largest magnitude."]
    for table in json.loads(pathlib.Path(f"{folder}/suite-gpu.json").read_text()):
        rows = [row for row in table["rows"] if "device" in row]
        lines += ["", f"## {table['device_name']}, {table['precision']}", "", f"torch {table['torch']}, CUDA {table['cuda']}; Orchestrion {table['commit']}; {table['date']}.", ""]
        heads = [f"{clock}: {name}" for clock in CLOCKS for name in ("Orchestrion", *PEERS, "best / Orchestrion")]
        lines += ["| model | " + " | ".join(heads) + " | steps | error | eager's | compile s |", "|---" * (len(heads) + 5) + "|"]
        for row in rows:
            cells = []
            for clock in CLOCKS:
                cells += [f"{row[clock]['orchestrion']:.3f}", *(f"{row[clock][peer]:.3f}" if peer in row[clock] else "failed" for peer in PEERS)]
                cells.append(f"{best(row, clock):.2f}" if best(row, clock) else "")
            peer_error = row["errors"].get("eager")
            cells += [row["steps"], f"{row['error']:.1e}", f"{peer_error:.1e}" if isinstance(peer_error, float) else "", row["compile_s"]]
            lines.append(f"| {row['row']} | " + " | ".join(map(str, cells)) + " |")
        means = {clock: [best(row, clock) for row in rows if best(row, clock)] for clock in CLOCKS}
        if all(means.values()):
            lines += ["", "Geometric means: " + ", ".join(f"{clock} **{contest.geometric_mean(ratios):.2f}**" for clock, ratios in means.items()) + "."]
        lines += ["", *(f"{row['row']}: {row['failed']}" for row in table["rows"] if "failed" in row)]
    pathlib.Path(f"{folder}/suite-gpu.md").write_text("\n".join(lines).rstrip() + "\n")


def dry_run(o, row, folder):
    """Compiles a row and prints its plan."""
    found, steps, _, _ = compiled(o, row, folder)
    print(f"{row}: {found['steps']} steps ({found['found']} found), modelled {found['modelled_ms']:.3f} ms, compiled in {found['compile_s']:.1f} s, by {found['exporter']}")
    for step in steps:
        print(f"    {step['modelled_us']:9.2f} us  {step['blocks'] or '-'} blocks  {step['name']}: {step['schedule']}")


def main():
    o = options()
    if o.report:
        return write_report(o.out or "bench/results")
    import torch

    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = o.precision == "tf32"
    start, failed, rows = time.monotonic(), [], wanted(o)
    for row in rows:
        if time.monotonic() - start > o.limit_s:
            break
        with tempfile.TemporaryDirectory(prefix="times-") as folder:
            try:
                found = (dry_run if o.dry_run else lambda *given: measure(o, torch, *given[1:]))(o, row, pathlib.Path(folder))
            except Exception as problem:  # noqa: BLE001 - a model that fails is a row
                failed.append(str(row))
                found = {"row": str(row), "precision": o.precision, "failed": (str(problem).splitlines() or [type(problem).__name__])[0][:200]}
                print(f"{row}: failed: {found['failed']}", flush=True)
        if o.dry_run:
            continue
        if "device" in found:
            print(f"{row}: " + "; ".join(f"{clock} {found[clock]}, best / Orchestrion {best(found, clock) or math.nan:.2f}" for clock in CLOCKS), flush=True)
        if o.out:
            pathlib.Path(o.out).mkdir(parents=True, exist_ok=True)
            key = {"device_name": torch.cuda.get_device_name(), "precision": o.precision}
            order = sorted({found["row"], *map(str, rows), *stored_rows(o.out)})
            contest.put_table(f"{o.out}/suite-gpu.json", key, contest.facts(torch, o.commit), "row", found, order)
            write_report(o.out)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def stored_rows(folder):
    """Rows that are in suite-gpu.json already."""
    path = pathlib.Path(f"{folder}/suite-gpu.json")
    return [row["row"] for table in (json.loads(path.read_text()) if path.exists() else []) for row in table["rows"]]


if __name__ == "__main__":
    main()
