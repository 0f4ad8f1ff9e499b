"""Single kernels on a GPU, beside torch on the same device in the same run.

usage: python3 bench/gpu/kernels.py [GROUP ...] [--precision f16|f32] [--peers NAMES] [--orchestrion FILE] [--options WORDS]
       [--out FOLDER]

Groups: `gemm` (products of decoding, BERT, ResNet's convolutions as products, squares), `odd` (products whose rows start at no
multiple of 16 bytes), `square` (f32 squares around 2048, which need not be multiples of anything), `conv` (the 23 blocks of
convolution, batch normalisation and ReLU of ResNet-50 that are Fig. 21 of the Hidet paper, channels last), `memory` (norms,
softmax, GELU, transposition, sums).

Each case is an ONNX model compiled by `orchestrion`; all tensors are inputs but for the weights of convolutions. Its peers:
for products torch with `cublas` and with `cublaslt`; for convolutions cuDNN with its own search, as `eager` (convolution,
bias, ReLU) and as `cudnn_fused` (all in one call), and if --peers names it `inductor` (torch.compile with max-autotune, which
takes minutes); for `memory` `eager` and `inductor`. TF32 is off. All are timed alike, by the device's clock: a CUDA graph of
one run, replayed after the L2 cache has been overwritten, in turns; a time is the median. A launch alone takes 4 us
so.
`error` is the largest absolute error against f64, relative to the largest magnitude. `of copy`: bytes that must move over the
time, relative to what copying as many bytes reaches, timed alike.

With --out, rows are added to FOLDER/kernels-gpu.json and FOLDER/kernels-gpu.md is written from it; --report does only the
latter. --dry-run needs neither torch nor a GPU: it compiles for cuda:sm_90 and prints plans.
"""
import argparse, functools, json, math, statistics, sys, tempfile, time

import contest

GEMM = [
    ("decode", [(1, 4096, 4096), (1, 11008, 4096), (1, 4096, 11008), (8, 4096, 4096), (16, 4096, 4096), (16, 11008, 4096),
                (32, 4096, 11008), (64, 4096, 4096)]),
    ("bert", [(128, 768, 768), (128, 2304, 768), (128, 3072, 768), (128, 768, 3072), (512, 768, 768), (512, 3072, 768),
              (512, 768, 3072), (2048, 3072, 768)]),
    ("resnet", [(3136, 64, 64), (3136, 64, 576), (3136, 256, 64), (784, 128, 1152), (784, 512, 128), (196, 256, 2304),
                (196, 1024, 256), (49, 512, 4608), (49, 2048, 512)]),
    ("square", [(n, n, n) for n in (512, 1024, 2048, 2039, 4096, 8192)]),
]
ODD = [(813, 813, 813), (1021, 1021, 1021), (1500, 1500, 1500), (2044, 2044, 2044), (2046, 2046, 2046), (4093, 4093, 4093),
       (128, 50257, 768), (197, 1001, 771)]
SQUARES = [2048, 2047, 2046, 2045, 2044, 2043, 2042, 2039]
# Input channels and extent, output channels, window, stride: the inputs of Fig. 21 of the Hidet paper, in its artifact's order.
CONV = [
    (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1), (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2), (128, 28, 512, 1, 1), (256, 56, 512, 1, 2), (512, 28, 128, 1, 1), (128, 28, 128, 3, 1),
    (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2), (1024, 14, 256, 1, 1),
    (256, 14, 256, 3, 1), (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2),
    (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1),
]
MEMORY = ["layernorm", "softmax", "gelu", "transpose", "sum_rows", "sum_columns"]
SIZES = [(128, 768), (1024, 4096), (8192, 8192)]
# The peers of a group, and those that it has only if they are asked for.
CUBLAS = ["cublas", "cublaslt"]
PEERS = {"gemm": CUBLAS, "odd": CUBLAS, "square": CUBLAS, "conv": ["eager", "cudnn_fused"], "memory": ["eager", "inductor"]}
MORE_PEERS = {"conv": ["inductor"]}
CUDNN = ("eager", "cudnn_fused")


class Case:
    """One model: how it is built in ONNX, the same function of torch, shapes of its inputs and its output; for convolutions
    also that function as one call of cuDNN."""

    def __init__(self, group, name, build, function, shapes, result, flops=0.0, precision=None, cudnn_fused=None):
        self.group, self.name, self.build, self.function = group, name, build, function
        self.shapes, self.result, self.flops, self.precision = shapes, result, flops, precision
        self.cudnn_fused = cudnn_fused

    def write(self, precision, path):
        inputs = {f"x{at}": shape for at, shape in enumerate(self.shapes)}
        contest.write_model("case", "f16" if precision == "f16" else "f32", self.build, inputs, self.result, path)


def gemm(group, m, n, k, precision=None):
    build = lambda model, a, b: model.op("MatMul", a, b)
    name = f"{m} x {n} x {k}"
    return Case(group, name, build, lambda a, b: a @ b, [(m, k), (k, n)], (m, n), 2.0 * m * n * k, precision)


def conv(channels, extent, results, window, stride):
    import numpy as np
    random = np.random.default_rng(0)
    weight = (random.standard_normal((results, channels, window, window)) * (channels * window**2) ** -0.5).astype(np.float32)
    bias = random.standard_normal(results).astype(np.float32)
    pad, out = window // 2, (extent + stride - 1) // stride

    def build(model, x):
        last = model.op("Transpose", x, perm=[0, 3, 1, 2])
        sums = model.op("Conv", last, model.array(weight), model.array(bias), pads=[pad] * 4, strides=[stride] * 2)
        return model.op("Transpose", model.op("Relu", sums), perm=[0, 2, 3, 1])

    @functools.cache
    def constants(dtype):
        import torch
        w = torch.tensor(weight, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        return w, torch.tensor(bias, device="cuda", dtype=dtype)

    def function(x):
        import torch
        w, b = constants(x.dtype)
        return torch.relu(torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, b, stride, pad)).permute(0, 2, 3, 1)

    def fused(x):
        import torch
        w, b = constants(x.dtype)
        return torch.cudnn_convolution_relu(x.permute(0, 3, 1, 2), w, b, (stride, stride), (pad, pad), (1, 1), 1).permute(0, 2, 3, 1)

    flops = 2.0 * out * out * results * channels * window**2
    name = f"{channels} x {extent}², {results} of {window} x {window}" + (f" / {stride}" if stride > 1 else "")
    return Case("conv", name, build, function, [(1, extent, extent, channels)], (1, out, out, results), flops, cudnn_fused=fused)


def memory(kind, rows, columns):
    def build(model, x):
        if kind == "layernorm":
            mean = model.op("ReduceMean", x, model.integers(-1), keepdims=1)
            centred = model.op("Sub", x, mean)
            variance = model.op("ReduceMean", model.op("Mul", centred, centred), model.integers(-1), keepdims=1)
            return model.op("Div", centred, model.op("Sqrt", model.op("Add", variance, model.scalar(1e-5))))
        if kind == "gelu":
            half = model.op("Mul", x, model.scalar(0.5))
            erf = model.op("Erf", model.op("Mul", x, model.scalar(0.5**0.5)))
            return model.op("Mul", half, model.op("Add", erf, model.scalar(1.0)))
        if kind == "sum_rows" or kind == "sum_columns":
            return model.op("ReduceSum", x, model.integers(1 if kind == "sum_rows" else 0), keepdims=0)
        return model.op("Softmax", x, axis=-1) if kind == "softmax" else model.op("Transpose", x, perm=[1, 0])

    def function(x):
        import torch
        functions = {
            "layernorm": lambda: torch.nn.functional.layer_norm(x, (columns,)), "softmax": lambda: torch.softmax(x, -1),
            "gelu": lambda: torch.nn.functional.gelu(x), "transpose": lambda: x.t().contiguous(),
            "sum_rows": lambda: x.sum(1), "sum_columns": lambda: x.sum(0),
        }
        return functions[kind]()

    result = {"transpose": (columns, rows), "sum_rows": (rows,), "sum_columns": (columns,)}.get(kind, (rows, columns))
    return Case("memory", f"{kind} {rows} x {columns}", build, function, [(rows, columns)], result)


def cases(groups):
    found = []
    if "gemm" in groups:
        found += [gemm("gemm", *shape) for _, shapes in GEMM for shape in shapes]
    if "odd" in groups:
        found += [gemm("odd", *shape) for shape in ODD]
    if "square" in groups:
        found += [gemm("square", n, n, n, "f32") for n in SQUARES]
    if "conv" in groups:
        found += [conv(*block) for block in CONV]
    if "memory" in groups:
        found += [memory(kind, *size) for kind in MEMORY for size in SIZES]
    return found


def peer_names(text):
    """The value of --peers."""
    names, known = text.split(","), {peer for peers in [*PEERS.values(), *MORE_PEERS.values()] for peer in peers}
    if not known.issuperset(names):
        raise argparse.ArgumentTypeError(f"there are {', '.join(sorted(known))}")
    return names


def options():
    parser = contest.arguments(__doc__)
    parser.add_argument("groups", nargs="*", default=list(PEERS))
    parser.add_argument("--precision", default="f16", choices=["f16", "f32"])
    parser.add_argument("--peers", type=peer_names, default=[], help="with commas between; a group of which none is named has its usual ones")
    return contest.parsed(parser)


def peers_of(o, group):
    named = [peer for peer in PEERS[group] + MORE_PEERS.get(group, []) if peer in o.peers]
    return named or PEERS[group]


def compiled(o, case, folder):
    """The artifact, the seconds it took, and the steps of its plan."""
    precision = case.precision or o.precision
    case.write(precision, f"{folder}/case.onnx")
    artifact = f"{folder}/case.orc"
    seconds = contest.compile_model(o.orchestrion, f"{folder}/case.onnx", artifact, o.target, precision, *o.options.split())
    return artifact, seconds, contest.steps_of(contest.manifest_of(o.orchestrion, artifact))


def graph_of(torch, case, peer, inputs):
    """A peer as a CUDA graph; None, with the reason printed, if it is a fused call that cuDNN does not serve."""
    if peer == "cudnn_fused":
        try:
            return contest.Graph(torch, case.cudnn_fused, inputs)
        except RuntimeError as error:
            print(f"{case.group} {case.name}: no {peer} in {inputs[0].dtype}: {str(error).splitlines()[0]}", flush=True)
            return None
    if peer == "inductor":
        torch._dynamo.reset()
        return contest.Graph(torch, contest.inductor(torch, case.function), inputs)
    if peer in ("cublas", "cublaslt"):
        torch.backends.cuda.preferred_blas_library(peer)
    return contest.Graph(torch, case.function, inputs)


def medians_of(o, torch, case, inputs, served):
    """The median microseconds of Orchestrion, of the peers and, for `memory`, of copying as much."""
    runners = {"orchestrion": served}
    runners |= {peer: graph_of(torch, case, peer, inputs) for peer in peers_of(o, case.group)}
    if case.group == "memory":
        copied = torch.randn(moved_elems(case) * inputs[0].element_size() // 8, device="cuda")
        runners["copy"] = contest.Graph(torch, lambda x: x.clone(), [copied])
    return contest.medians_us({name: runner for name, runner in runners.items() if runner})


def moved_elems(case):
    """Elements that must be read or written."""
    return sum(math.prod(shape) for shape in case.shapes) + math.prod(case.result)


def measure(o, torch, case, folder):
    import numpy as np
    artifact, seconds, steps = compiled(o, case, folder)
    precision = case.precision or o.precision
    dtype = torch.float16 if precision == "f16" else torch.float32
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, device="cuda").to(dtype) for shape in case.shapes]
    if len(inputs) == 2:
        inputs[1] *= case.shapes[1][0] ** -0.5
    files = {f"x{at}": f"{folder}/x{at}.npy" for at in range(len(inputs))}
    for file, tensor in zip(files.values(), inputs):
        np.save(file, tensor.cpu().numpy())
    reference = case.function(*[tensor.double() for tensor in inputs]).cpu().numpy()
    error = contest.error_of(contest.result_of(o.orchestrion, artifact, files, folder), reference)
    row = {"case": case.name, "group": case.group, "error": error}
    row |= {"steps": len(steps), "schedule": " + ".join(step["schedule"] for step in steps), "compile_s": round(seconds, 1)}
    served = contest.Served(o.orchestrion, artifact, files, "--device-only", "--cold")
    medians = medians_of(o, torch, case, inputs, served)
    row["orchestrion"] = medians.pop("orchestrion")
    copy = medians.pop("copy", None)
    row |= {"peers": medians, "best": min(medians, key=medians.get)}
    row["ratio"] = round(medians[row["best"]] / row["orchestrion"], 3)
    row["tflops"] = round(case.flops / row["orchestrion"] / 1e6, 1)
    row["of_copy"] = round(copy / row["orchestrion"], 3) if copy else None
    return row


def table_lines(rows):
    peers = list(dict.fromkeys(peer for row in rows for peer in row["peers"]))
    by_copy, by_flops = any(row["of_copy"] for row in rows), any(row["tflops"] for row in rows)
    head = ["case", "Orchestrion us", *peers, "best / Orchestrion", *(["TFLOP/s"] if by_flops else []), *(["of copy"] if by_copy else [])]
    head += ["kernels", "error"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        times = (f"{row['peers'][peer]:.1f}" if peer in row["peers"] else "" for peer in peers)
        cells = [row["case"], f"**{row['orchestrion']:.1f}**", *times, f"{row['ratio']:.2f}"]
        cells += [f"{row['tflops']:.1f}"] if by_flops else []
        cells += [f"{row['of_copy']:.2f}" if row["of_copy"] else ""] if by_copy else []
        lines.append("| " + " | ".join([*cells, str(row["steps"]), f"{row['error']:.1e}"]) + " |")
    return lines


def summary(rows):
    ratios = sorted(row["ratio"] for row in rows)
    mean = contest.geometric_mean(ratios)
    text = f"{len(rows)} cases: best peer / Orchestrion has median {statistics.median(ratios):.2f}, geometric mean {mean:.2f}, least {ratios[0]:.2f}; "
    return text + f"{sum(ratio >= 1 for ratio in ratios)} are not slower." + cudnn_summary(rows)


def cudnn_summary(rows):
    """How many convolutions are faster than the best of cuDNN; nothing for other groups."""
    compared = [row for row in rows if row["group"] == "conv" and set(CUDNN) & set(row["peers"])]
    if not compared:
        return ""
    faster = [row for row in compared if row["orchestrion"] < min(time for peer, time in row["peers"].items() if peer in CUDNN)]
    fused = [row for row in compared if "cudnn_fused" in row["peers"]]
    share = f"{len(faster)} of {len(compared)} ({100 * len(faster) / len(compared):.0f} %)"
    return f" {share} are faster than the best of cuDNN, fused ({len(fused)} of them) or not."


def write_report(folder):
    """kernels-gpu.md from kernels-gpu.json."""
    lines = [
        "# Single kernels on a GPU", "",
        "Written by `bench/gpu/kernels.py`. Microseconds by the device's clock: a CUDA graph of one run after the L2",
        "cache was overwritten, medians of interleaved rounds, each enqueued before it starts; a launch alone takes 4 of them. The cache",
        "is full of lines that must be written back first, which delays what only reads. Ratios above 1 mean that Orchestrion",
        "is faster than the best peer. `error`: largest error against f64, relative to the largest magnitude. `of copy`: the time of",
        "copying as many bytes over Orchestrion's.",
    ]
    for table in json.load(open(f"{folder}/kernels-gpu.json")):
        rows = table["rows"]
        lines += ["", f"## {table['group']}, {table['precision']}", ""]
        lines += [f"{table['device']}, torch {table['torch']}, CUDA {table['cuda']}; Orchestrion {table['commit']}; {table['date']}.", ""]
        lines += [summary(rows), "", *table_lines(rows)]
    with open(f"{folder}/kernels-gpu.md", "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    o = options()
    if o.report:
        return write_report(o.out or "bench/results")
    wanted = cases(o.groups)
    with tempfile.TemporaryDirectory() as folder:
        if o.dry_run:
            for case in wanted:
                _, seconds, steps = compiled(o, case, folder)
                print(f"{case.group} {case.name}: {seconds:.1f} s", *(f"    {s['modelled_us']:9.2f} us  {s['schedule']}" for s in steps), sep="\n", flush=True)
            return
        import torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        start, order = time.time(), [case.name for case in cases(PEERS)]
        rows = {}
        for case in wanted:
            if time.time() - start > o.limit_s:
                sys.exit(f"no time left for {case.group} {case.name} and what follows")
            row = measure(o, torch, case, folder)
            rows.setdefault(case.group, []).append(row)
            more = f", {row['tflops']} TFLOP/s" if row["tflops"] else f", {row['of_copy']} of copy"
            print(f"{case.group} {case.name}: {row['orchestrion']} us, {row['ratio']} x; {row['peers']}{more}, error {row['error']:.1e}; {row['steps']} {row['schedule'][:150]}", flush=True)
            if o.out:
                key = {"device": torch.cuda.get_device_name(), "group": case.group, "precision": case.precision or o.precision}
                contest.put_table(f"{o.out}/kernels-gpu.json", key, contest.facts(torch, o.commit), "case", row, order)
                write_report(o.out)
        for group, found in rows.items():
            print(f"{group}: {summary(found)}")


if __name__ == "__main__":
    main()
