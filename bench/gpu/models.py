"""Whole models on a GPU at batch 1, beside torch on the same device in the same run.

usage: python3 bench/gpu/models.py [MODEL ...] [--precision f16|bf16|tf32|f32] [--modes eager,graph,ro,ma] [--out FOLDER]

Each model is compiled by `orchestrion` (from PATH, or --binary) and by torch: `eager`, `graph` (a CUDA graph of eager),
`ro` and `ma` (torch.compile with mode reduce-overhead or max-autotune), all channels-last where that is a choice.
Orchestrion and the peers run by turns, in rounds; a time is the median over all rounds of the time from the call until
the host knows that it has ended, with inputs and outputs on the device. Outputs are compared with ONNX Runtime's, which
`fill.py --reference` stored. `floor` is the time that the model's bytes (its inputs, outputs and constants, once each)
and operations take at least, by the rates that --bandwidth and --flops state.

With --out, FOLDER/gpu-PRECISION.json is written (gpu-PRECISION-ma.json with max-autotune, which takes minutes a model; rows of
other models stay), and FOLDER/gpu.md from all such files there; --report does only the latter.

Needs models as fill.py of the zoo writes them (--zoo), torch, torchvision, timm, transformers, and the script of the
zoo's peers (--peers), whose models it builds.
"""
import argparse, contextlib, glob, importlib.util, io, json, os, shutil, statistics, subprocess, tempfile, time

import contest

MODELS = "resnet50 mobilenet_v2 inception_v3 bert_base gpt2 segformer_b0 efficientvit_b1 vit_b16 convnext_tiny".split()
ROUNDS, RUNS, WARM_UP = 12, 10, 10


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--modes", default="graph,ro")
    parser.add_argument("--binary", default=shutil.which("orchestrion") or "target/release/orchestrion")
    parser.add_argument("--options", default="", help="further options of `orchestrion compile`, in one word")
    parser.add_argument("--zoo", default="target/zoo")
    parser.add_argument("--peers", default=os.path.join(os.path.dirname(__file__), "../../../shared/peers/gpu_models.py"))
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes per second")
    parser.add_argument("--flops", type=float, help="operations per second (default: by precision)")
    parser.add_argument("--out")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--commit", default="", help="what was measured, for the report")
    return parser.parse_args()


def floor_ms(o, manifest):
    """Each tensor of the plan that is an input, an output or a constant moved once, and all operations."""
    seen, moved = set(), 0
    for step in manifest["steps"]:
        for slot in step["slots"]:
            place = json.dumps(slot["place"])
            if "arena" not in place and place not in seen:
                seen.add(place)
                moved += slot["bytes"]
    flops = sum(step["flops"] for step in manifest["steps"])
    rate = o.flops or {"f16": 790e12, "bf16": 790e12, "tf32": 400e12, "f32": 60e12}[o.precision]
    return max(moved / o.bandwidth, flops / rate) * 1e3


class Peer:
    """One mode of torch."""

    def __init__(self, torch, model, inputs, mode):
        call = lambda: model(*inputs)
        if mode == "graph":
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.kept = call()
            call = graph.replay
        elif mode != "eager":
            torch._dynamo.reset()
            compiled = torch.compile(model, mode={"ro": "reduce-overhead", "ma": "max-autotune"}[mode])
            call = lambda: compiled(*inputs)
        self.torch, self.call = torch, call
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.times_ms(WARM_UP)

    def times_ms(self, runs):
        found = []
        for _ in range(runs):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            self.call()
            self.torch.cuda.synchronize()
            found.append((time.perf_counter() - start) * 1e3)
        return found


def measure(o, torch, peers, name):
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(o.precision, torch.float32)
    artifact = os.path.join(tempfile.gettempdir(), f"{name}.{o.precision}.orc")
    further = o.options.split()
    seconds = contest.compile_model(o.binary, f"{o.zoo}/{name}/model.onnx", artifact, "cuda", o.precision, *further)
    row = {"model": name, "precision": o.precision, "compile_s": round(seconds, 1)}
    manifest = contest.manifest_of(o.binary, artifact)
    row["found"] = sum(step["found"] for step in contest.steps_of(manifest))
    row["kernels"] = len(manifest["steps"])
    row["floor"] = round(floor_ms(o, manifest), 4)
    row["error"] = contest.model_error(o.binary, artifact, manifest, f"{o.zoo}/{name}/test_data_set_0")
    contenders = {"orchestrion": contest.Served(o.binary, artifact, {})}
    model, inputs = peers.build(name, 1, dtype)
    model = model.eval().to("cuda", dtype).to(memory_format=torch.channels_last)
    start = time.time()
    with torch.inference_mode():
        for mode in o.modes.split(","):
            try:
                contenders[mode] = Peer(torch, model, inputs, mode)
            except Exception as error:
                row[mode] = "error: " + str(error).splitlines()[0][:60]
        row["peers_setup_s"] = round(time.time() - start, 1)
        times = {contender: [] for contender in contenders}
        for _ in range(ROUNDS):
            for contender, runner in contenders.items():
                times[contender] += runner.times_ms(RUNS)
    contenders["orchestrion"].end()
    row |= {contender: round(statistics.median(found), 4) for contender, found in times.items()}
    best = min(value for contender, value in row.items() if contender in o.modes.split(",") and isinstance(value, float))
    row["ratio"] = round(best / row["orchestrion"], 3)
    return row


NAMES = {"eager": "torch eager", "graph": "CUDA graph of eager", "ro": "torch.compile reduce-overhead", "ma": "max-autotune"}


def commits(table):
    """What was measured: rows that were kept have commits of their own."""
    older = {}
    for row in table["rows"]:
        if row.get("commit", table["commit"]) != table["commit"]:
            older.setdefault(row["commit"], []).append(row["model"])
    kept = "; ".join(f"{', '.join(models)}: {commit}" for commit, models in older.items())
    return table["commit"] + (f" ({kept})" if kept else "")


def kept(path, table, models):
    """Rows of other models that a file has, measured on the same device beside the same peers, and its notes."""
    if not os.path.exists(path):
        return [], {}
    old = json.load(open(path))
    if any(old.get(part) != table[part] for part in ("device", "torch", "cuda", "options", "modes")):
        return [], {}
    rows = [{"commit": old["commit"], **row} for row in old["rows"] if row["model"] not in models]
    return rows, {"notes": old["notes"]} if "notes" in old else {}


def write_report(folder):
    """gpu.md from the tables of all precisions in a folder."""
    lines = ["# Whole models on a GPU, batch 1", "", "Written by `bench/gpu/models.py`. Milliseconds from the call until the host knows that it has ended, inputs and", "outputs on the device; medians of interleaved rounds. Ratios above 1 mean that Orchestrion is faster than the best peer.", "`floor`: bytes and operations by the device's measured rates. `error`: relative to ONNX Runtime in f32, by norm."]
    for path in sorted(glob.glob(f"{folder}/gpu-*.json")):
        table = json.load(open(path))
        rows, modes = table["rows"], table["modes"]
        kind = ", beside max-autotune" if "ma" in modes else ""
        options = f" {table['options']}" if table.get("options") else ""
        about = f"{table['device']}, torch {table['torch']}, CUDA {table['cuda']}; Orchestrion {commits(table)}{options}; {table['date']}."
        lines += ["", f"## {table['precision']}{kind}", "", about, ""]
        lines += ["| model | Orchestrion | " + " | ".join(NAMES[mode] for mode in modes) + " | best / Orchestrion | floor | error | kernels | compile s |", "|---" * (len(modes) + 7) + "|"]
        for row in rows:
            cells = [f"{row[mode]:.3f}" if isinstance(row[mode], float) else "failed" for mode in modes]
            lines.append(f"| {row['model']} | {row['orchestrion']:.3f} | " + " | ".join(cells) + f" | {row['ratio']:.2f} | {row['floor']:.3f} | {row['error']:.1e} | {row['kernels']} | {row['compile_s']} |")
        mean = contest.geometric_mean(row["ratio"] for row in rows)
        lines.append("| **geometric mean** |" + " |" * (len(modes) + 1) + f" **{mean:.2f}** | | | | |")
        lines += ["", *table.get("notes", [])] if table.get("notes") else []
    open(f"{folder}/gpu.md", "w").write("\n".join(lines) + "\n")


def main():
    o = options()
    if o.report:
        return write_report(o.out or "bench/results")
    import torch
    spec = importlib.util.spec_from_file_location("peers", o.peers)
    peers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peers)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = o.precision == "tf32"
    torch.backends.cudnn.benchmark = True
    modes = o.modes.split(",")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {o.precision}; milliseconds")
    print(f"{'model':16} {'ours':>8}", *(f"{mode:>8}" for mode in modes), f"{'best/ours':>9} {'floor':>8} {'error':>8} compile")
    table = {"precision": o.precision, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    table |= {"cuda": torch.version.cuda, "commit": o.commit, "options": o.options, "date": time.strftime("%Y-%m-%d"), "modes": modes}
    path = f"{o.out}/gpu-{o.precision}{'-ma' if 'ma' in modes else ''}.json"
    rows, (older, notes) = [], kept(path, table, o.models) if o.out else ([], {})
    for name in o.models:
        row = measure(o, torch, peers, name) | {"commit": o.commit}
        rows.append(row)
        cells = (f"{row[mode]:8.3f}" if isinstance(row[mode], float) else f"{'-':>8}" for mode in modes)
        tail = f"{row['ratio']:9.2f} {row['floor']:8.3f} {row['error']:8.1e} {row['compile_s']:5.1f} s"
        print(f"{name:16} {row['orchestrion']:8.3f}", *cells, tail, flush=True)
        if o.out:
            # What has been measured is kept if a later model fails.
            together = sorted(older + rows, key=lambda row: (MODELS + o.models).index(row["model"]))
            with open(path, "w") as file:
                json.dump({**table, **notes, "rows": together}, file, indent=1)
            write_report(o.out)
    print(f"geomean of best/ours: {contest.geometric_mean(row['ratio'] for row in rows):.3f}")


if __name__ == "__main__":
    main()
