#!/usr/bin/env python3
"""The workloads of PyGraph's evaluation on a GPU: kernels in CUDA graphs, bytes copied, times of each launch mode, peak memory.

    graphs.py --out FOLDER [WORKLOAD ..] [--scale small] [--dtype float16] [--rounds 5] [--limit-s 600] [--processes N | --memory | --warm]

Workloads are those of `graph_suite.py`, by the paper's short names; without one, all. Each is measured in a process of its own, all modes
interleaved there; with --processes, in N of them one after the other, of which the medians count. Modes: `eager`; `inductor`;
`cg-whole`, Inductor's graphs without partitions, as in the paper; `cg`, its `reduce-overhead`; `ours`,
which chooses how kernels are launched; `direct`, `line` and `branched`, ours with that forced. Each call gets new tensors. `latency` is from
a call until the host knows of its end, `throughput` that of 20 calls in a row, each; microseconds, medians. With --memory, the peak of each
mode's memory is measured instead, in a process of its own: what modes of one process free in each other's calls is in no figure then. With
--warm, the first calls of ResNet-50 and BERT-base in new processes are measured instead, beside `aot_eager`, with compiled kernels and the
chosen launch mode in the cache.

FOLDER gets `graphs.json` and `graphs.md` (`memory.json`, `memory.md`; `warm.json`, `warm.md`), written anew after each row. No row begins after `--limit-s`, and one
that is not done then has the modes that were. On a CPU (`--device cpu --scale tiny`) it shows that all of it runs; there are no graphs.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

import torch
import torch._inductor.config

import graph_suite

#: Modes, and what `torch.compile` is told.
MODES: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "inductor": {},
    "cg-whole": {"mode": "reduce-overhead"},
    "cg": {"mode": "reduce-overhead"},
    "autotuned": {"mode": "max-autotune"},
    "ours": {"backend": "orchestrion"},
    "direct": {"backend": "orchestrion", "options": {"launches": "direct"}},
    "line": {"backend": "orchestrion", "options": {"launches": "line"}},
    "branched": {"backend": "orchestrion", "options": {"launches": "branched"}},
}
FORCED = ("direct", "line", "branched")
#: Measured unless others are named: `autotuned` compiles for minutes.
USUAL = [mode for mode in MODES if mode != "autotuned"]
ON_CPU = ["eager", "inductor", "ours"]
#: Calls before anything is measured: our choice of a launch mode takes 78 runs of each graph, Inductor records at the second call.
WARM_UP = {"ours": 90}
WARM_UP_OTHERS = 5


class Mode:
    """A way to call a workload's model."""

    def __init__(self, name: str, model: torch.nn.Module, train: bool) -> None:
        self.name, self._model, self._train = name, model, train
        options = MODES[name]
        self._call = model if options is None else torch.compile(model, dynamic=False, **options)

    def __call__(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        if self.name in ("cg", "cg-whole", "autotuned"):
            torch.compiler.cudagraph_mark_step_begin()
        output = self._call(*inputs)
        output = output[0] if isinstance(output, (tuple, list)) else output
        if self._train:
            for parameter in self._model.parameters():
                parameter.grad = None
            output.float().square().mean().backward()
        return output


class Row:
    """The measurements of one workload."""

    def __init__(self, name: str, arguments: argparse.Namespace, path: pathlib.Path) -> None:
        self._arguments, self._path = arguments, path
        self._workload = graph_suite.WORKLOADS[name]
        self._gpu = arguments.device == "cuda"
        self._dtype = self._workload.dtype or getattr(torch, arguments.dtype)
        self.found: dict[str, Any] = {"workload": name, "scale": arguments.scale, "train": self._workload.train, "modes": {}}

    def measure(self) -> None:
        """Measures all modes; what is known is written after each step."""
        # Each mode is an entry of the same cache.
        torch._dynamo.config.recompile_limit = 256
        torch.set_float32_matmul_precision("high")
        model, inputs = self._workload.make(self._arguments.scale)
        model = model.to(self._arguments.device, self._dtype)
        inputs = [self._moved(tensor) for tensor in inputs]
        self.found["dtype"] = str(self._dtype).removeprefix("torch.")
        fresh = [[tensor.clone() for tensor in inputs] for _ in range(4)]
        modes = []
        with torch.set_grad_enabled(self._workload.train):
            for name in self._arguments.modes:
                if time.time() > self._arguments.deadline:
                    self.found.setdefault("not_measured", []).append(name)
                    continue
                mode = self._built(name, model, fresh)
                if mode is not None:
                    modes.append(mode)
                self.write()
            if not self._arguments.memory:
                self._compare(modes, fresh[0])
                self._time(modes, fresh)
        self.found["is_whole"] = "not_measured" not in self.found
        self.write()

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        floating = tensor.is_floating_point() and self._workload.dtype is None
        return tensor.to(self._arguments.device, self._dtype if floating else tensor.dtype)

    def _built(self, name: str, model: torch.nn.Module, fresh: list[list[torch.Tensor]]) -> Mode | None:
        """A mode that was called often enough, with its memory and what a call launches."""
        entry: dict[str, Any] = {}
        self.found["modes"][name] = entry
        # Which graphs Inductor makes is asked when it compiles.
        torch._inductor.config.graph_partition = name != "cg-whole"
        if name == "ours":
            import orchestrion.torch._report as report

            report.clear()
        try:
            memory = _Memory(self._gpu) if self._arguments.memory else None
            own = copy.deepcopy(model)
            mode = Mode(name, own, self._workload.train)
            start = time.perf_counter()
            mode(fresh[0])
            self._wait()
            entry["first_s"] = round(time.perf_counter() - start, 2)
            for number in range(WARM_UP.get(name, WARM_UP_OTHERS)):
                mode(fresh[number % len(fresh)])
            self._wait()
            if memory:
                entry.update(memory.of_calls(lambda: mode(fresh[1])))
            elif self._gpu:
                entry.update(_launched(lambda: [mode(inputs) for inputs in fresh[:3]], calls=3))
            if name == "ours":
                from orchestrion.torch import reports

                entry["graphs"] = [
                    {"kind": graph.kind, "calls": graph.calls, "compiled": graph.compiled, "partitions": graph.partitions,
                     "reason": graph.reason, "eager": {target: count for target, (count, _) in graph.eager.items()},
                     "launches": graph.launches}
                    for graph in reports()
                ]
        except Exception:  # noqa: BLE001 - the other modes remain
            entry["failed"] = traceback.format_exc()[-900:]
            return None
        return mode

    def _compare(self, modes: list[Mode], inputs: list[torch.Tensor]) -> None:
        """The largest difference from eager, relative to its norm; random numbers differ."""
        reference = None
        for mode in modes:
            torch.manual_seed(1)
            output = mode(inputs).detach().double().clone()
            if mode.name == "eager":
                reference = output
            elif reference is not None and output.shape == reference.shape:
                error = (output - reference).norm() / reference.norm().clamp(min=1e-30)
                self.found["modes"][mode.name]["difference"] = float(f"{error.item():.2e}")

    def _time(self, modes: list[Mode], fresh: list[list[torch.Tensor]]) -> None:
        times: dict[str, tuple[list[float], list[float]]] = {mode.name: ([], []) for mode in modes}
        for number in range(self._arguments.rounds):
            if time.time() > self._arguments.deadline + 30:
                break
            # The order rotates: else each mode would always find the caches of the same other one.
            first = number % max(len(modes), 1)
            for mode in modes[first:] + modes[:first]:
                latency, throughput = self._timed(mode, fresh)
                times[mode.name][0].extend(latency)
                times[mode.name][1].append(throughput)
        for name, (latency, throughput) in times.items():
            if latency:
                entry = self.found["modes"][name]
                entry["latency_us"] = round(statistics.median(latency), 1)
                entry["throughput_us"] = round(statistics.median(throughput), 1)

    def _timed(self, mode: Mode, fresh: list[list[torch.Tensor]]) -> tuple[list[float], float]:
        # The first call of a round finds caches of the mode before.
        mode(fresh[0])
        calls = self._arguments.calls
        latency = []
        for number in range(calls):
            self._wait()
            start = time.perf_counter()
            mode(fresh[number % len(fresh)])
            self._wait()
            latency.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        for number in range(calls):
            mode(fresh[number % len(fresh)])
        self._wait()
        return latency, (time.perf_counter() - start) * 1e6 / calls

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()

    def write(self) -> None:
        """Writes what is known."""
        self._path.write_text(json.dumps(self.found, indent=1))


class _Memory:
    """Memory of the GPU that a mode takes beyond what there was before, its weights among it."""

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        if gpu:
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self._allocated = torch.cuda.memory_allocated()
            self._outside = self._used_outside()

    def of_calls(self, call: Any) -> dict[str, Any]:
        """MiB at the peak of some calls: of PyTorch's allocator, and of what is not its own."""
        if not self._gpu:
            return {}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - self._allocated
        outside = self._used_outside() - self._outside
        return {"peak_mib": round(peak / 2**20, 1), "outside_mib": round(outside / 2**20, 1)}

    @staticmethod
    def _used_outside() -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()


def _launched(run: Any, calls: int) -> dict[str, Any]:
    """What a call launches: kernels, those of them that are in graphs, graphs, and bytes that are copied."""
    copied = 0
    foreach_copy = torch._foreach_copy_

    def counted(targets: list[torch.Tensor], sources: list[torch.Tensor], *rest: Any, **named: Any) -> Any:
        nonlocal copied
        copied += sum(tensor.nbytes for tensor in targets)
        return foreach_copy(targets, sources, *rest, **named)

    # Inductor's graphs copy their inputs so, by a kernel.
    torch._foreach_copy_ = counted
    try:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            run()
            torch.cuda.synchronize()
    finally:
        torch._foreach_copy_ = foreach_copy
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    copies = [event for event in events if event.get("cat") == "gpu_memcpy"]
    launchers = {
        event["args"]["correlation"]: event["name"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    shared: dict[int, int] = {}
    for kernel in kernels:
        correlation = kernel["args"].get("correlation", -1)
        shared[correlation] = shared.get(correlation, 0) + 1
    # A graph's kernels have the number of its launch. That of a driver's call may not be recorded: then more than one kernel says so.
    is_graph = {
        correlation: "GraphLaunch" in launchers[correlation] if correlation in launchers else count > 1
        for correlation, count in shared.items()
    }
    in_graphs = sum(count for correlation, count in shared.items() if is_graph[correlation])
    host_copies = [event for event in copies if "HtoD" in event["name"]]
    return {
        "kernels": round(len(kernels) / calls, 1),
        "kernels_in_graphs": round(in_graphs / calls, 1),
        "graph_launches": round(sum(is_graph.values()) / calls, 1),
        "bytes_copied": round((sum(event["args"].get("bytes", 0) for event in copies) + copied) / calls),
        "bytes_from_host": round(sum(event["args"].get("bytes", 0) for event in host_copies) / calls),
    }


# Tables


def _share(entry: dict[str, Any]) -> str:
    return f"{100 * entry['kernels_in_graphs'] / entry['kernels']:.0f} % of {entry['kernels']:.0f}" if entry.get("kernels") else "-"


def _times(entry: dict[str, Any]) -> str:
    return f"{entry['latency_us']:.0f} / {entry['throughput_us']:.0f}" if "latency_us" in entry else "-"


def _size(entry: dict[str, Any], key: str) -> str:
    number = entry.get(key)
    return "-" if number is None else f"{number / 1e6:.2f}" if number else "0"


def table(rows: list[dict[str, Any]], modes: list[str]) -> str:
    """Rows as Markdown."""
    lines = [
        f"| workload | {' | '.join(modes)} | ours / best forced | best other / ours |",
        "|---" * (len(modes) + 3) + "|",
    ]
    for row in rows:
        found = row["modes"]

        def us(names: Any, key: str) -> float | None:
            known = [found[name][key] for name in names if key in found.get(name, {})]
            return min(known) if known else None

        ratios = []
        for key in ("latency_us", "throughput_us"):
            ours, forced = us(["ours"], key), us(FORCED, key)
            other = us([mode for mode in modes if mode not in (*FORCED, "ours")], key)
            ratios.append((ours / forced if ours and forced else None, other / ours if ours and other else None))
        shown = [" / ".join("-" if pair[at] is None else f"{pair[at]:.2f}" for pair in ratios) for at in (0, 1)]
        cells = [_times(found.get(mode, {})) for mode in modes]
        title = row["workload"] + ("" if row.get("is_whole") else " (part)")
        lines.append(f"| {title} | {' | '.join(cells)} | {' | '.join(shown)} |")
    lines += [
        "",
        "| workload | in graphs: cg-whole | cg | ours | MB copied a call: cg | ours | from the host | first call s: inductor | ours |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        def entry(mode: str) -> dict[str, Any]:
            found: dict[str, Any] = row["modes"].get(mode, {})
            return found

        shares = [_share(entry(mode)) for mode in ("cg-whole", "cg", "ours")]
        copied = [_size(entry("cg"), "bytes_copied"), _size(entry("ours"), "bytes_copied"), _size(entry("ours"), "bytes_from_host")]
        first = [str(entry(mode).get("first_s", "-")) for mode in ("inductor", "ours")]
        cells = [*shares, *copied, *first]
        lines.append(f"| {row['workload']} | {' | '.join(cells)} |")
    return "\n".join([*lines, *_failures(rows)]) + "\n"


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    """The modes that failed, as lines of Markdown."""
    failed = [(row["workload"], mode, entry["failed"]) for row in rows for mode, entry in row["modes"].items() if "failed" in entry]
    return ["", *(f"- {workload}, {mode}: `{text.strip().splitlines()[-1][:200]}`" for workload, mode, text in failed)]


def memory_table(rows: list[dict[str, Any]], modes: list[str]) -> str:
    """Peaks of memory as Markdown: MiB of PyTorch's allocator, and of what is not its own."""
    lines = [f"| workload | {' | '.join(modes)} | ours / inductor |", "|---" * (len(modes) + 2) + "|"]
    for row in rows:
        found = row["modes"]
        cells = [f"{found[mode]['peak_mib']} ({found[mode]['outside_mib']})" if "peak_mib" in found.get(mode, {}) else "-" for mode in modes]
        ours, other = (found.get(mode, {}).get("peak_mib") for mode in ("ours", "inductor"))
        lines.append(f"| {row['workload']} | {' | '.join(cells)} | {f'{ours / other:.2f}' if ours and other else '-'} |")
    return "\n".join([*lines, *_failures(rows)]) + "\n"


def stamp(arguments: argparse.Namespace) -> str:
    """What the rows were measured with."""
    if arguments.device == "cpu":
        return f"CPU, torch {torch.__version__}, scale {arguments.scale}"
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, scale {arguments.scale}, {arguments.dtype}, {time.strftime('%Y-%m-%d')}"


# Warm start


def warm_start(arguments: argparse.Namespace) -> None:
    """First calls in new processes with a warm cache, beside `aot_eager`."""
    folder = arguments.out / "warm"
    (folder / "cache").mkdir(parents=True, exist_ok=True, mode=0o700)
    rows = []
    begin = time.time()
    for name in ("resnet50", "bert-base"):
        # The cache gets the kernels, and the launch mode that this process chooses.
        _first_call(name, "orchestrion", arguments, folder, calls=WARM_UP["ours"])
        found: dict[str, list[dict[str, Any]]] = {"orchestrion": [], "aot_eager": []}
        for _ in range(arguments.rounds):
            if time.time() - begin > arguments.limit_s and all(found.values()):
                break
            for backend, calls in found.items():
                calls.append(_first_call(name, backend, arguments, folder))
        ours, eager = (statistics.median(call["seconds"] for call in calls) for calls in found.values())
        launches = [text for call in found["orchestrion"] for text in call["launches"]]
        rows.append({
            "model": name, "orchestrion_s": ours, "aot_eager_s": eager, "allowed_s": eager + 1, "runs": len(found["aot_eager"]),
            "launches": sorted(set(launches)),
        })
        (arguments.out / "warm.json").write_text(json.dumps(rows, indent=1))
        lines = ["| model | first call s, ours | `aot_eager` | ours - `aot_eager` (1.0 is allowed) | ours, from the first call on |", "|---|---|---|---|---|"]
        lines += [f"| {row['model']} | {row['orchestrion_s']:.2f} | {row['aot_eager_s']:.2f} | {row['orchestrion_s'] - row['aot_eager_s']:.2f} "
                  f"| {'; '.join(row['launches']) or 'no launch mode is known'} |"
                  for row in rows]
        (arguments.out / "warm.md").write_text(stamp(arguments) + "\n\n" + "\n".join(lines) + "\n")
    print((arguments.out / "warm.md").read_text())


def _first_call(name: str, backend: str, arguments: argparse.Namespace, folder: pathlib.Path, calls: int = 1) -> dict[str, Any]:
    command = [sys.executable, __file__, "--out", str(arguments.out), "--child-first", name, backend, "--calls", str(calls)]
    for option in ("device", "dtype"):
        command += [f"--{option}", getattr(arguments, option)]
    environment = {**os.environ, "ORCHESTRION_CACHE": str(folder / "cache")}
    text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def first_call(name: str, backend: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the first call in this process, imports aside, and how our kernels are launched after it. Further calls follow."""
    import orchestrion.torch._report as report
    from warm import model_of

    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    model, inputs = model_of(name)
    model = model.to(device, dtype)
    inputs = [tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in inputs]

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    # What Dynamo, AOTAutograd and CUDA load at their first use is the same for all.
    for other in ("orchestrion", "aot_eager"):
        torch.compile(lambda x: x + 1, backend=other)(torch.ones(3, device=device))
    torch.compiler.reset()
    report.clear()
    with torch.no_grad():
        model(*inputs)
        wait()
        start = time.perf_counter()
        compiled = torch.compile(model, backend=backend)
        compiled(*inputs)
        wait()
        seconds = time.perf_counter() - start
        launches = [text for graph in report.reports() for text in graph.launches]
        for _ in range(arguments.calls - 1):
            compiled(*inputs)
            wait()
    return {"seconds": seconds, "launches": launches}


# The run


def run_suite(arguments: argparse.Namespace) -> None:
    """Measures each workload in a process of its own; its memory, each mode."""
    begin = time.time()
    rows: list[dict[str, Any]] = []
    name_of_files, made = ("memory", memory_table) if arguments.memory else ("graphs", table)
    for name in arguments.workloads or list(graph_suite.WORKLOADS):
        left = arguments.limit_s - (time.time() - begin)
        if left <= 0:
            print(f"{name}: not started", flush=True)
            continue
        processes = [[mode] for mode in arguments.modes] if arguments.memory else [arguments.modes] * arguments.processes
        row: dict[str, Any] = {"workload": name}
        entries: dict[str, list[dict[str, Any]]] = {}
        for number, modes in enumerate(processes):
            if number and time.time() - begin > arguments.limit_s:
                row["is_whole"] = False
                break
            found = _in_own_process(name, modes, arguments, begin + arguments.limit_s)
            row.update(found)
            for mode, entry in found["modes"].items():
                entries.setdefault(mode, []).append(entry)
        row["modes"] = {mode: _median_of(of_processes) for mode, of_processes in entries.items()}
        rows.append(row)
        (arguments.out / f"{name_of_files}.json").write_text(json.dumps({"stamp": stamp(arguments), "rows": rows}, indent=1))
        (arguments.out / f"{name_of_files}.md").write_text(stamp(arguments) + "\n\n" + made(rows, arguments.modes))
        shown = {mode: entry.get("peak_mib", "-") if arguments.memory else _times(entry) for mode, entry in row["modes"].items()}
        problem = f"  PROBLEM {row['problem'][-200:]}" if "problem" in row else ""
        print(f"{time.time() - begin:5.0f} s  {name}: {shown}{problem}", flush=True)


def _median_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What several processes found of a mode: the last one's entry with the medians of times."""
    times = {key: [entry[key] for entry in entries if key in entry] for key in ("latency_us", "throughput_us")}
    return {**entries[-1], **{key: statistics.median(found) for key, found in times.items() if found}}


def _in_own_process(name: str, modes: list[str], arguments: argparse.Namespace, end: float) -> dict[str, Any]:
    """The row of a workload with some modes, which a process measures until about `end`."""
    path = arguments.out / f"row-{name}.json"
    path.unlink(missing_ok=True)
    left = max(end - time.time(), 1.0)
    command = [sys.executable, __file__, "--out", str(arguments.out), "--child", name, "--deadline", str(time.time() + 0.8 * left)]
    for option in ("scale", "dtype", "rounds", "calls", "device"):
        command += [f"--{option}", str(getattr(arguments, option))]
    command += ["--memory"] if arguments.memory else []
    command += ["--modes", *modes]
    try:
        ended = subprocess.run(command, timeout=left + 60, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        problem = ended.stderr[-900:] if ended.returncode else None
    except subprocess.TimeoutExpired:
        problem = "the time ran out"
    row: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"workload": name, "modes": {}}
    path.unlink(missing_ok=True)
    return {**row, "problem": problem} if problem else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(graph_suite.WORKLOADS)}")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--scale", choices=graph_suite.SCALES, default="small")
    parser.add_argument("--dtype", default="float16", help="of workloads that do not need another one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20, help="calls of a mode in a round")
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--modes", nargs="+", choices=list(MODES))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--processes", type=int, default=1, metavar="N", help="measure a workload in N processes; medians")
    what.add_argument("--memory", action="store_true", help="peaks of memory, each mode in a process of its own, instead of times")
    what.add_argument("--warm", action="store_true", help="first calls in new processes, instead of the workloads")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--child-first", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=float("inf"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.modes = arguments.modes or (ON_CPU if arguments.device == "cpu" else USUAL)
    unknown = sorted(set(arguments.workloads) - set(graph_suite.WORKLOADS))
    if unknown:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(graph_suite.WORKLOADS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.child_first:
        print(json.dumps(first_call(*arguments.child_first, arguments)))
    elif arguments.child:
        Row(arguments.child, arguments, arguments.out / f"row-{arguments.child}.json").measure()
    elif arguments.warm:
        warm_start(arguments)
    else:
        run_suite(arguments)


if __name__ == "__main__":
    main()
