"""Models of one operator each on a GPU beside torch's operators, in f32, at three sizes.

usage: python3 bench/gpu/operators.py [--only NAME ...] [--artifacts FOLDER] [--orchestrion FILE] [--options WORDS] [--out PREFIX]
       python3 bench/gpu/operators.py [--only NAME ...] --compile-only FOLDER

The models are those of `bench/operators.py`. Each is compiled, or taken from FOLDER, where `--compile-only` has put all of them on a
machine that needs neither torch nor a GPU (--target, by default cuda:sm_90). Both get the same inputs and take turns; a time is the
median:

- `ours`, `graph`: a run by the device's clock, of a row of runs in one CUDA graph, each on tensors of its own: of torch what its
  operator's kernels take, however fast the host launches them. Not all of its operators can be captured;
- `eager`: a call of torch by the device's clock, of many calls in a row: the longer of its kernels and launching them;
- `our call`, `its call`: one call until the host knows that it has ended.

`error`: what is computed beside torch, by Euclidean norm; of integers the share that differs. With --out, PREFIX.json and PREFIX.md are
written after each operator.
"""
import argparse, concurrent.futures, json, math, os, pathlib, shutil, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import operators  # noqa: E402
from gpu import contest  # noqa: E402

#: Runs in a row, turns, and runs of a turn.
ROW, ROUNDS, RUNS = 8, 5, 4
#: Calls of an eager operator in a row.
CALLS = 32
#: Largest error of what computes, and share of integers that may differ: ties of a TopK go to any index in torch.
LIMITS = {"f": 1e-4, "i": 1e-3}


def resized(mode, align_corners=None):
    def of(torch, channels, height, width, scale):
        size = (int(height * scale), int(width * scale))
        return lambda x: torch.nn.functional.interpolate(x, size=size, mode=mode, align_corners=align_corners)

    return of


def scaled(of, scale):
    return lambda torch, *size: of(torch, *size, scale)


def transposed_convolution(window, padding):
    def of(torch, channels_in, channels_out, side):
        weight = torch.from_numpy(operators.conv_transpose_weight(channels_in, channels_out, window)).cuda()
        return lambda x: torch.nn.functional.conv_transpose2d(x, weight, stride=2, padding=padding)

    return of


def top(largest=True, k=None):
    return lambda torch, rows, extent: lambda x: torch.topk(x, k, largest=largest)


#: For each operator a function of torch, of the model's inputs: `of(torch, *size)`.
TORCH = {
    "top_5": top(k=5),
    "top_50": top(k=50),
    "top_300": top(k=300),
    "smallest_5": top(largest=False, k=5),
    "sort": lambda torch, rows, extent: lambda x: torch.sort(x, descending=True),
    "arg_max": lambda torch, *size: lambda x: x.argmax(-1),
    "arg_max_of_classes": lambda torch, *size: lambda x: x.argmax(1),
    "cumulative_sum": lambda torch, *size: lambda x: x.cumsum(1),
    "cumulative_sum_of_middle_axis": lambda torch, *size: lambda x: x.cumsum(1),
    "scatter_elements": lambda torch, *size: lambda i, x, u: x.scatter(0, i, u),
    "scatter_elements_added": lambda torch, *size: lambda i, x, u: x.scatter_add(0, i, u),
    "scatter_nd": lambda torch, *size: lambda i, x, u: x.index_put((i[:, 0],), u),
    "scatter_nd_of_elements": lambda torch, *size: lambda i, x, u: x.index_put((i[:, 0],), u),
    "embedding_gradient": lambda torch, rows, *size: lambda i, u: torch.ops.aten.embedding_dense_backward(u, i[:, 0], rows, -1, False),
    "index_put": lambda torch, *size: lambda x, u, i: torch.ops.aten.index_put(x, [None, None, i], u),
    "gather_elements": lambda torch, *size: lambda x, i: x.gather(0, i),
    "gather_rows": lambda torch, *size: lambda x, i: x[i],
    "gather_columns": lambda torch, *size: lambda x, i: x[:, i],
    "resize_nearest_up": scaled(resized("nearest"), 2),
    "resize_nearest_by_1_7": scaled(resized("nearest"), 1.7),
    "resize_linear_up": scaled(resized("bilinear", False), 2),
    "resize_linear_down": scaled(resized("bilinear", False), 0.5),
    "resize_linear_by_1_7": scaled(resized("bilinear", True), 1.7),
    "resize_cubic_up": scaled(resized("bicubic", False), 2),
    "resize_cubic_by_0_7": scaled(resized("bicubic", False), 0.7),
    "one_hot": lambda torch, rows, classes: lambda i: torch.nn.functional.one_hot(i, classes).float(),
    "unfold": lambda torch, *size: lambda x: torch.nn.functional.unfold(x, 3, padding=1),
    "roll": lambda torch, *size: lambda x: torch.roll(x, (-3, -3), (1, 2)),
    "conv_transpose_2": transposed_convolution(2, 0),
    "conv_transpose_4": transposed_convolution(4, 1),
}


class Case:
    """One operator at one size."""

    def __init__(self, name, label, size, build):
        self.name, self.label, self.size, self.build = name, label, size, build
        self.stem = f"{name}_{label}"

    def model(self):
        graph = operators.Graph(18)
        self.build(graph, *self.size)
        return graph.model(self.stem)

    def compiled(self, o, folder):
        """The artifact in a folder, made there."""
        import onnx
        path, artifact = pathlib.Path(folder) / f"{self.stem}.onnx", pathlib.Path(folder) / f"{self.stem}.orc"
        onnx.save(self.model(), path)
        contest.compile_model(o.orchestrion, path, artifact, o.target, "f32", *o.options.split())
        path.unlink()
        return artifact


class Calls:
    """An eager function of torch: calls in a row by the device's clock, or single calls by the host's."""

    def __init__(self, torch, function, inputs, by_host):
        self.torch, self.call, self.by_host = torch, lambda: function(*inputs), by_host
        self.times_ms(contest.WARM_UP)

    def times_ms(self, runs):
        return [self.single_ms() if self.by_host else self.row_ms() for _ in range(runs)]

    def single_ms(self):
        start = time.perf_counter()
        self.call()
        self.torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    def row_ms(self):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            self.call()
        end.record()
        self.torch.cuda.synchronize()
        return begin.elapsed_time(end) / CALLS

    def end(self):
        pass


def prepared(o, case, folder):
    """The artifact, its steps, the model's inputs, what a run computes, and the processes that time runs and calls."""
    import numpy as np
    folder = pathlib.Path(folder) / case.stem
    folder.mkdir()
    artifact = pathlib.Path(o.artifacts) / f"{case.stem}.orc" if o.artifacts else case.compiled(o, folder)
    model = case.model()
    inputs = list(operators.arrays(model))
    files = {port.name: folder / f"{number}.npy" for number, port in enumerate(model.graph.input)}
    for file, array in zip(files.values(), inputs):
        np.save(file, array)
    command = [o.orchestrion, "run", artifact, "-q", *contest.given(files), "--output-dir", folder / "ours"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[:300] or f"exit code {done.returncode}")
    results = [np.load(folder / "ours" / f"{port.name}.npy") for port in model.graph.output]
    steps = contest.steps_of(contest.manifest_of(o.orchestrion, artifact))
    row = contest.Served(o.orchestrion, artifact, files, "--device-only", "--in-a-row", str(ROW))
    return steps, inputs, results, row, contest.Served(o.orchestrion, artifact, files)


def error_of(results, references):
    """The largest error, and whether all are within limits."""
    errors = [(contest.distance(given, reference), "f" if reference.dtype.kind == "f" else "i") for given, reference in zip(results, references)]
    return max(error for error, _ in errors), all(error <= LIMITS[kind] for error, kind in errors)


def measure(torch, case, steps, arrays, results, row, call):
    """The row of a case."""
    function = TORCH[case.name](torch, *case.size)
    inputs = [torch.from_numpy(array).cuda() for array in arrays]
    references = function(*inputs)
    references = references if isinstance(references, tuple) else (references,)
    error, is_right = error_of(results, [reference.cpu().numpy() for reference in references])
    found = {"operator": f"{case.name} {case.label}", "size": case.size, "error": error, "is_right": is_right}
    found |= {"steps": len(steps), "modelled_us": sum(step["modelled_us"] for step in steps), "schedules": [step["schedule"] for step in steps]}
    runners = {"ours": row, "eager": Calls(torch, function, inputs, by_host=False), "our_call": call, "its_call": Calls(torch, function, inputs, by_host=True)}
    try:
        runners["graph"] = contest.Row(torch, function, [[tensor.clone() for tensor in inputs] for _ in range(ROW)])
    except RuntimeError:
        torch.cuda.synchronize()
    return found | contest.medians_us(runners, ROUNDS, RUNS)


def table(rows):
    """The Markdown table, worst rows first."""
    ratio = lambda row: row["ours"] / row["eager"]  # noqa: E731
    lines = ["| operator | size | ours, us | eager | ours by it | graph | our call | its call | kernels | modelled | error |", "|---" * 11 + "|"]
    for row in sorted(rows, key=ratio, reverse=True):
        times = [f"{row[key]:.1f}" if key in row else "" for key in ("graph", "our_call", "its_call")]
        shown = f"**{ratio(row):.2f}**" if ratio(row) > 1 else f"{ratio(row):.2f}"
        error = f"{row['error']:.1e}" if row["is_right"] else f"**{row['error']:.1e}**"
        cells = [row["operator"], "x".join(map(str, row["size"])), f"{row['ours']:.1f}", f"{row['eager']:.1f}", shown, *times]
        lines.append("| " + " | ".join([*cells, str(row["steps"]), f"{row['modelled_us']:.1f}", error]) + " |")
    return lines


def write_report(prefix, facts, rows, failed):
    ratios = [row["ours"] / row["eager"] for row in rows]
    graphs = [row["ours"] / row["graph"] for row in rows if "graph" in row]
    told = (f"{sum(ratio <= 1 for ratio in ratios)} of {len(ratios)} rows are not slower than torch eager, geometric mean {contest.geometric_mean(ratios):.2f}; "
            f"{sum(ratio <= 1 for ratio in graphs)} of {len(graphs)} than its kernels in a CUDA graph, {contest.geometric_mean(graphs):.2f}." if graphs else "")
    lines = ["# Single operators on a GPU beside torch, f32", "", "Written by `bench/gpu/operators.py`, which says how times are taken. Medians in us, worst rows first; a ratio is our time by",
             "torch eager's, bold beyond 1.", "", ", ".join(f"{key} {value}" for key, value in facts.items()) + ".", "", told, "", *table(rows)]
    lines += ["", *(f"- {name}: {why}" for name, why in failed.items())]
    pathlib.Path(f"{prefix}.md").write_text("\n".join(lines).rstrip() + "\n")
    pathlib.Path(f"{prefix}.json").write_text(json.dumps({**facts, "failed": failed, "rows": rows}, indent=1) + "\n")


def run(o, cases):
    import torch
    facts = {"device": torch.cuda.get_device_name(), **contest.facts(torch, o.commit)}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows, failed, start = [], {}, time.time()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as pool:
        for name in dict.fromkeys(case.name for case in cases):
            if time.time() - start > o.limit_s:
                sys.exit(f"no time left for {name} and what follows")
            # Processes start side by side, and wait until it is their turn.
            started = [(case, pool.submit(prepared, o, case, folder)) for case in cases if case.name == name]
            concurrent.futures.wait([future for _, future in started])
            for case, future in started:
                try:
                    row = measure(torch, case, *future.result())
                except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
                    failed[case.stem] = str(error)[:300]
                    print(f"{case.stem}: {failed[case.stem]}", flush=True)
                    continue
                rows.append(row)
                print(*(f"{key} {value}" for key, value in row.items() if key != "schedules"), flush=True)
            if o.out and rows:
                write_report(o.out, facts, rows, failed)
    return not failed and all(row["is_right"] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrion", default=shutil.which("orchestrion") or ROOT / "target/release/orchestrion", metavar="FILE")
    parser.add_argument("--target", help="default: cuda, or cuda:sm_90 with --compile-only")
    parser.add_argument("--options", default="", help="further options of `orchestrion compile`, in one word")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="start no operator after that many seconds")
    parser.add_argument("--commit", default="", help="what was measured, for the report")
    parser.add_argument("--out", metavar="PREFIX")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="operators; all by default")
    parser.add_argument("--artifacts", metavar="FOLDER", help="where --compile-only has put them")
    parser.add_argument("--compile-only", metavar="FOLDER")
    o = parser.parse_args()
    o.target = o.target or ("cuda:sm_90" if o.compile_only else "cuda")
    unknown = set(o.only or []) - set(TORCH)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    cases = [Case(name, label, size, build) for name, sizes, build in operators.OPERATORS if name in (o.only or TORCH) for label, size in sizes.items()]
    if not o.compile_only:
        sys.exit(0 if run(o, cases) else 1)
    os.makedirs(o.compile_only, exist_ok=True)
    for case in cases:
        start = time.time()
        steps = contest.steps_of(contest.manifest_of(o.orchestrion, case.compiled(o, o.compile_only)))
        shown = "; ".join(f"{step['schedule']} {step['modelled_us']}" for step in steps)
        print(f"{case.stem}: {sum(step['modelled_us'] for step in steps):.1f} us modelled, {time.time() - start:.1f} s: {shown}", flush=True)


if __name__ == "__main__":
    main()
