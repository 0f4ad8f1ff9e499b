"""The programs of the Mirage paper on a GPU, beside torch on the same device in the same run.

usage: python3 bench/gpu/programs.py [PROGRAM ...] [--batch 1,8] [--peers FILE] [--orchestrion FILE] [--out FOLDER]

Each program is written as an ONNX model all of whose tensors are inputs, so that nothing is folded, and compiled by
`orchestrion`. With --precision f16 or bf16 the inputs and the output are f16: they are cast to f32, and back, in the
model, so that what is computed in between has the precision that the compiler chooses. --io f16-in leaves the output
f32, and --io f32 the inputs too. Its peers are the functions of `gpu_programs.py` (--peers) in the type of the inputs:
eager, inductor (torch.compile with max-autotune), and for attention the kernels of torch's scaled_dot_product_attention.

Orchestrion and the peers run by turns, in rounds. All are timed alike, by the device's clock: a CUDA graph of one run,
replayed after the L2 cache has been overwritten, from the launch to the end. A time is the median over all
rounds. `warm` is Orchestrion's time if nothing is overwritten. `in a row` is the time of a run in one graph of runs on
different inputs, together larger than the cache, as `gpu_programs.py` defines it: launches are hidden there. That is
measured in rounds of its own, in which Orchestrion and the peers take turns, too. `floor` is the time that inputs and
output, moved once, and operations take at least, by the rates that --bandwidth and --flops state. `error` is the largest
absolute error against torch in f64, relative to the largest magnitude.

With --out, rows are added to FOLDER/programs.json (those of the same program, batch, types and device are replaced),
and FOLDER/programs.md is written from it; --report does only the latter.

--dry-run needs neither torch nor a GPU: it writes and compiles the models (for cuda:sm_90, or --target) and prints plans.
"""
import importlib.util, json, math, os, subprocess, sys, tempfile, time

import contest

EPS = 1e-5


def options():
    parser = contest.arguments(__doc__)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--precision", default="f16", choices=["f16", "bf16", "tf32", "f32"])
    parser.add_argument("--io", choices=["f16", "f16-in", "f32"], help="types of inputs and output (default: by precision)")
    parser.add_argument("--modes", default="eager,inductor,sdpa", help="peers")
    parser.add_argument("--peers", default=os.path.join(os.path.dirname(__file__), "../../../shared/peers/gpu_programs.py"))
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes per second")
    parser.add_argument("--flops", type=float, help="operations per second (default: by precision)")
    parser.add_argument("--folder", help="where models and executables are kept (default: none are)")
    o = contest.parsed(parser)
    o.io = o.io or ("f16" if o.precision in ("f16", "bf16") else "f32")
    o.flops = o.flops or {"f16": 790e12, "bf16": 790e12, "tf32": 400e12, "f32": 60e12}[o.precision]
    o.batches = [int(batch) for batch in o.batch.split(",")]
    return o


def rms(m, x):
    mean = m.op("ReduceMean", m.op("Mul", x, x), m.integers(-1), keepdims=1)
    return m.op("Div", x, m.op("Sqrt", m.op("Add", mean, m.scalar(EPS))))


def attention(m, q, k, v):
    return m.op("MatMul", m.op("Softmax", m.op("MatMul", q, k), axis=-1), v)


def normalised_attention(m, q, k, v):
    return attention(m, rms(m, q), k, rms(m, v))


def mlp(m, x, a, w):
    return m.op("MatMul", m.op("Relu", m.op("MatMul", x, a)), w)


def lora(m, x, w, a, c):
    return m.op("Add", m.op("MatMul", x, w), m.op("MatMul", m.op("MatMul", x, a), c))


def norm_linear(m, x, w):
    return m.op("MatMul", rms(m, x), w)


def gated_mlp(m, x, w1, w2):
    gate = m.op("MatMul", x, w1)
    return m.op("Mul", m.op("Mul", gate, m.op("Sigmoid", gate)), m.op("MatMul", x, w2))


def ntrans(m, h, x, a):
    return rms(m, m.op("Add", x, m.op("Mul", a, m.op("Add", rms(m, h), x))))


def programs(b):
    """name -> (what builds it, inputs by name, shape of the output); shapes as in `gpu_programs.py`."""
    found = {}
    for name, heads, m, n in [
        ("mha_inc", 32 * b, 16, 4096), ("mha_prefill", 32 * b, 256, 1024), ("gqa_inc", 2 * b, 8, 4096),
        ("gqa_spec", 2 * b, 256, 4096), ("mqa_inc", b, 32, 4096), ("mqa_spec", b, 1024, 4096),
        ("mqa_prefill", b, 4096, 4096), ("mha_inc_text", 32 * b, 1, 4096), ("mha_spec_text", 32 * b, 32, 4096),
        ("gqa_prefill_text", 2 * b, 8 * 512, 4096), ("qknorm_gqa", 2 * b, 256, 4096),
    ]:
        inputs = {"q": (heads, m, 64), "k": (heads, 64, n), "v": (heads, n, 64)}
        found[name] = (normalised_attention if name == "qknorm_gqa" else attention, inputs, (heads, m, 64))
    found["mlp_adapter"] = (mlp, {"x": (16 * b, 8192), "a": (8192, 8), "w": (8, 8192)}, (16 * b, 8192))
    found["moe"] = (mlp, {"x": (8, 8 * b, 4096), "a": (8, 4096, 4096), "w": (8, 4096, 4096)}, (8, 8 * b, 4096))
    for name, k in [("lora", 256), ("lora_4k", 4096)]:
        inputs = {"x": (16 * b, k), "w": (k, 4096), "a": (k, 16), "c": (16, 4096)}
        found[name] = (lora, inputs, (16 * b, 4096))
    found["rmsnorm_linear"] = (norm_linear, {"x": (2 * b, 4096), "w": (4096, 6144)}, (2 * b, 6144))
    found["gated_mlp"] = (gated_mlp, {"x": (8 * b, 4096), "w1": (4096, 4096), "w2": (4096, 4096)}, (8 * b, 4096))
    found["ntrans"] = (ntrans, dict.fromkeys(["h", "x", "a"], (8 * b, 4096)), (8 * b, 4096))
    return found


def compiled(o, path, artifact):
    """The seconds that compiling took, the steps of the plan, and the seconds of search."""
    seconds = contest.compile_model(o.orchestrion, path, artifact, o.target, o.precision, *o.options.split())
    manifest = contest.manifest_of(o.orchestrion, artifact)
    search_s = dict(manifest["report"]["stage_seconds"]).get("superoptimize", 0.0)
    return round(seconds, 1), contest.steps_of(manifest), round(search_s, 1)


def contenders(o, torch, peers, function):
    """The peers of a function, by name."""
    modes, found = o.modes.split(","), {}
    if "eager" in modes:
        found["eager"] = function
    if "inductor" in modes:
        found["inductor"] = contest.inductor(torch, function)
    if "sdpa" in modes and function is peers.attention:
        for name, backend in [("flash", "FLASH_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"), ("efficient", "EFFICIENT_ATTENTION")]:
            found[name] = peers.sdpa(getattr(peers.SDPBackend, backend))
    return found


def given_to(function, inputs):
    """The inputs of a peer, with k as it wants it."""
    if not getattr(function, "wants_k_rows", False):
        return inputs
    q, k, v = inputs
    return [q, k.transpose(1, 2).contiguous(), v]


def measure(o, torch, peers, name, batch, folder):
    import numpy as np
    program = programs(batch)[name]
    function, shapes, flops = peers.programs(batch)[name]
    assert [tuple(shape) for shape in shapes] == list(program[1].values()), f"{name}: shapes are not those of the peers"
    model, artifact = f"{folder}/{name}_{batch}.onnx", f"{folder}/{name}_{batch}.orc"
    contest.write_model(name, o.io, *program, model)
    row = {"program": name, "batch": batch, "precision": o.precision, "commit": o.commit}
    row["compile_s"], row["steps"], row["search_s"] = compiled(o, model, artifact)
    torch.manual_seed(0)
    element_bytes = 4 if o.io == "f32" else 2
    input_bytes = element_bytes * sum(math.prod(shape) for shape in shapes)
    sets = [peers.make(shapes) for _ in range(max(2, min(24, int(200e6 // input_bytes) + 1)))]
    dtype = np.float32 if o.io == "f32" else np.float16
    files = {}
    for port, tensor in zip(program[1], sets[0]):
        files[port] = f"{folder}/{port}.npy"
        np.save(files[port], tensor.cpu().numpy().astype(dtype))
    reference = function(*[tensor.double() for tensor in sets[0]]).double()
    row["error"] = contest.error_of(contest.result_of(o.orchestrion, artifact, files, folder), reference.cpu().numpy())
    moved = input_bytes + element_bytes * reference.numel()
    row["floor"] = round(max(moved / o.bandwidth, flops / o.flops) * 1e6, 2)
    served = lambda *flags: contest.Served(o.orchestrion, artifact, files, "--device-only", *flags)
    runners = {"orchestrion": served("--cold"), "warm": served()}
    rows = {"orchestrion": served("--in-a-row", str(len(sets)))}
    row["errors"] = {}
    for mode, peer in contenders(o, torch, peers, function).items():
        try:
            torch._dynamo.reset()
            given = [given_to(peer, inputs) for inputs in sets]
            result = peer(*given[0]).double()
            row["errors"][mode] = float((result - reference).abs().max() / reference.abs().max())
            runners[mode] = contest.Graph(torch, peer, given[0])
            rows[mode] = contest.Row(torch, peer, given)
        except Exception as error:
            row["errors"][mode] = "error: " + (str(error).splitlines() or [type(error).__name__])[0][:60]
    del reference
    torch.cuda.empty_cache()
    row["in_a_row"] = contest.medians_us(rows, runs=contest.ROW_REPLAYS)
    medians = contest.medians_us(runners)
    row["orchestrion"], row["warm"] = medians.pop("orchestrion"), medians.pop("warm")
    row["peers"] = medians
    row["best"] = min(medians, key=medians.get, default=None)
    row["ratio"] = round(medians[row["best"]] / row["orchestrion"], 3) if medians else None
    return row


MODES = ["eager", "inductor", "flash", "cudnn", "efficient"]


def in_a_row(row):
    """Of runs in a row: Orchestrion's time, the best peer's, and their ratio; those that were measured."""
    peers = dict(row["in_a_row"])
    own, best = peers.pop("orchestrion", None), min(peers.values(), default=None)
    return own, best, best / own if own and best else None


def plan_text(steps):
    """`2 (1 found)`: kernels, and how many of them the superoptimizer found."""
    found = sum(step["found"] for step in steps)
    return f"{len(steps)} ({found} found)" if found else str(len(steps))


def table_lines(rows):
    shown = [mode for mode in MODES if any(mode in row["peers"] for row in rows)]
    head = ["program", "Orchestrion", *shown, "best / Orchestrion", "warm", "in a row", "best in a row", "best / Orchestrion in a row", "floor", "kernels", "error", "best peer's", "compile s"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        peers = [f"{row['peers'][mode]:.1f}" if mode in row["peers"] else "" for mode in shown]
        other = row["errors"].get(row["best"])
        cells = [row["program"], f"**{row['orchestrion']:.1f}**", *peers, f"{row['ratio']:.2f}" if row["ratio"] else ""]
        own, best, ratio = in_a_row(row)
        cells += [f"{row['warm']:.1f}", f"**{own:.1f}**" if own else "", f"{best:.1f}" if best else "", f"{ratio:.2f}" if ratio else ""]
        cells += [f"{row['floor']:.1f}", plan_text(row["steps"])]
        cells += [f"{row['error']:.1e}", f"{other:.1e}" if isinstance(other, float) else "", f"{row['compile_s']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    mean = lambda ratios: f"**{contest.geometric_mean(ratios):.2f}**" if ratios else ""
    alone = mean([row["ratio"] for row in rows if row["ratio"]])
    row_ratios = mean([ratio for ratio in (in_a_row(row)[2] for row in rows) if ratio])
    cells = ["**geometric mean**", "", *["" for _ in shown], alone, "", "", "", row_ratios, *[""] * 5]
    lines.append("| " + " | ".join(cells) + " |")
    return lines


def write_report(folder):
    """programs.md from programs.json."""
    tables = json.load(open(f"{folder}/programs.json"))
    lines = [
        "# Programs of the Mirage paper on a GPU", "",
        "Written by `bench/gpu/programs.py`. Microseconds by the device's clock: a CUDA graph of one run after the L2",
        "cache was overwritten, medians of interleaved rounds. Ratios above 1 mean that Orchestrion is faster than the best peer.",
        "`warm`: Orchestrion, with nothing overwritten. `in a row`: Orchestrion's time of a run in one graph of runs on different",
        "inputs, larger than the cache together; `best in a row`: the least of the peers' such times, measured in turns with it.",
        "`floor`: bytes and operations by the device's measured rates. `kernels`: those of Orchestrion, and how many of them the",
        "superoptimizer found. `error`: largest error against f64, relative to the largest magnitude.",
    ]
    for table in tables:
        lines += ["", f"## {table['precision']}, inputs and output {table['io']}, batch {table['batch']}", ""]
        earlier = {}
        for row in table["rows"]:
            if row.get("commit", table["commit"]) != table["commit"]:
                earlier.setdefault(row["commit"], []).append(row["program"])
        of_others = "".join(f" Rows of {commit}: {', '.join(names)}." for commit, names in earlier.items())
        lines += [f"{table['device']}, torch {table['torch']}, CUDA {table['cuda']}; Orchestrion {table['commit']}; {table['date']}.{of_others}", ""]
        lines += table_lines(table["rows"])
    open(f"{folder}/programs.md", "w").write("\n".join(lines) + "\n")


def add_row(o, torch, row):
    """Puts a row into programs.json, in the order of the programs."""
    key = {"device": torch.cuda.get_device_name(), "precision": o.precision, "io": o.io, "batch": row["batch"]}
    contest.put_table(f"{o.out}/programs.json", key, contest.facts(torch, o.commit), "program", row, list(programs(1)))


def plan_lines(steps):
    return [f"    {'found   ' if s['found'] else 'template'} {s['modelled_us']:9.2f} us  {s['blocks'] or '-'} blocks  {s['name']}: {s['schedule']}"
            + (f", {s['spill_bytes']} bytes spilled" if s["spill_bytes"] else "") for s in steps]


def dry_run(o, name, batch, folder):
    """Writes and compiles a model; false if that fails."""
    model, artifact = f"{folder}/{name}_{batch}.onnx", f"{folder}/{name}_{batch}.orc"
    contest.write_model(name, o.io, *programs(batch)[name], model)
    try:
        seconds, steps, search_s = compiled(o, model, artifact)
    except RuntimeError as error:
        print(f"{name} {batch}: failed: {error}", flush=True)
        return False
    print(f"{name} {batch}: {plan_text(steps)} kernels, compiled in {seconds:.1f} s ({search_s:.1f} s of search)", *plan_lines(steps), sep="\n", flush=True)
    return True


def device_modules(o):
    import torch
    spec = importlib.util.spec_from_file_location("peers", o.peers)
    peers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peers)
    torch.backends.cuda.matmul.allow_tf32 = o.precision == "tf32"
    peers.HALF["dtype"] = torch.float32 if o.io == "f32" else torch.float16
    return torch, peers


def main():
    o = options()
    if o.report:
        return write_report(o.out or "bench/results")
    unknown = set(o.programs) - set(programs(1))
    if unknown:
        sys.exit(f"no such program: {', '.join(sorted(unknown))}; there are {', '.join(programs(1))}")
    wanted = [(name, batch) for batch in o.batches for name in o.programs or programs(batch)]
    start, failed = time.time(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = o.folder or temporary
        os.makedirs(folder, exist_ok=True)
        if o.dry_run:
            failed = [f"{name} {batch}" for name, batch in wanted if not dry_run(o, name, batch, folder)]
        else:
            torch, peers = device_modules(o)
            print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {o.precision}; microseconds")
            for name, batch in wanted:
                if time.time() - start > o.limit_s:
                    failed.append(f"{name} {batch} (no time left)")
                    continue
                try:
                    row = measure(o, torch, peers, name, batch, folder)
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    print(f"{name} {batch}: {error}", flush=True)
                    failed.append(f"{name} {batch}")
                    if "CUDA error" in str(error):
                        sys.exit(f"this process can use the device no longer; not done: {', '.join(failed)} and what follows")
                    continue
                own = f"{row['orchestrion']:.1f} us cold, {row['warm']:.1f} warm, floor {row['floor']:.1f}, error {row['error']:.1e}"
                print(f"{name} {batch}: {own}; best {row['best']} {row['ratio']} x; {row['peers']}; in a row {row['in_a_row']}; {row['errors']}")
                print(*plan_lines(row["steps"]), sep="\n", flush=True)
                if o.out:
                    add_row(o, torch, row)
                    write_report(o.out)
    if failed:
        sys.exit(f"not done: {', '.join(failed)}")


if __name__ == "__main__":
    main()
