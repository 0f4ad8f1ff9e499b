"""Kernels under NVIDIA's compute-sanitizer: out-of-bounds and misaligned accesses, races in shared memory, wrong barriers.

usage: python3 bench/gpu/sanitize.py [MODEL.onnx ...] [--precision f16,f32] [--orchestrion FILE] [--commit NAME] [--out FOLDER]

Runs small cases of every template (products, convolutions, norms, reductions, transposition; sorts, selections of the largest,
merges, scatters and cumulative sums of `bench/operators.py`; recurrent layers whose CTAs wait for each other), programs of the
Mirage paper, attention of more blocks than an H100 has SMs (with heads of 128 its CTAs are persistent), and the given models, in
f16, f32, or both, each compiled by `orchestrion` and run once under each tool, several side by side. Prints a line for each case and tool, and with --out writes FOLDER/sanitizer.md. The exit
code is 1 if a tool reports anything, or could not do its work.
"""
import argparse, concurrent.futures, os, pathlib, re, shutil, subprocess, sys, tempfile, time

import contest, kernels, programs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import operators  # noqa: E402
import recurrent  # noqa: E402

TOOLS = ["memcheck", "racecheck", "synccheck"]
PROGRAMS = ["gqa_inc", "gqa_spec", "mha_prefill", "qknorm_gqa", "mlp_adapter", "lora", "rmsnorm_linear", "gated_mlp", "ntrans"]
# Attention by name: the size of heads, and whether it is causal. 128 sequences x heads of 384 tokens are more blocks than SMs.
ATTENTION = {"attention of 64": (64, False), "causal attention of 64": (64, True),
             "attention of 128": (128, False), "causal attention of 128": (128, True)}
ATTENTION_HEADS, ATTENTION_TOKENS = 128, 384
# Operators of `bench/operators.py` by name, at these sizes: rows within a CTA; and in parts that are merged, or updates that are
# counted first.
OPERATORS = {
    **dict.fromkeys(["top_5", "top_50", "top_300", "smallest_5", "sort", "cumulative_sum"], ["small", "medium"]),
    **dict.fromkeys(["scatter_elements", "scatter_elements_added", "scatter_nd", "scatter_nd_of_elements"], ["small", "medium"]),
    **dict.fromkeys(["arg_max", "embedding_gradient", "index_put", "cumulative_sum_of_middle_axis"], ["small"]),
}
# Cell, steps, hidden units and sequences.
RECURRENCES = [("LSTM", 6, 512, 20), ("GRU", 7, 256, 9), ("LSTM", 6, 300, 3)]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--precision", type=precisions, default="f16,f32", help="f16, f32, or both with a comma")
    parser.add_argument("--orchestrion", default=shutil.which("orchestrion") or "target/release/orchestrion")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=120, help="seconds of one run")
    parser.add_argument("--commit", default="", help="what was checked, for the report")
    parser.add_argument("--out")
    return parser.parse_args()


def precisions(text):
    found = text.split(",")
    if not set(found) <= {"f16", "f32"}:
        raise argparse.ArgumentTypeError(f"`{text}` is given, f16 and f32 are checked")
    return found


def cases():
    found = [kernels.gemm("gemm", *shape) for shape in [(5, 96, 80), (200, 264, 136), (130, 72, 1000), (1, 512, 512)]]
    found += [kernels.gemm("odd", 813, 801, 815)]
    found += [kernels.conv(*block) for block in [(3, 30, 24, 7, 2), (32, 14, 64, 3, 1), (64, 14, 40, 1, 2)]]
    return found + [kernels.memory(kind, 33, 520) for kind in kernels.MEMORY]


def write_models(o, folder, precision):
    """Small models as files, by name."""
    found = {os.path.basename(path).removesuffix(".onnx"): path for path in o.models}
    for number, case in enumerate(cases()):
        found[f"{case.group} {case.name}"] = path = f"{folder}/case{number}.onnx"
        case.write(precision, path)
    for name, sizes, build in operators.OPERATORS:
        for size in OPERATORS.get(name, []):
            found[f"{name} {size}"] = path = f"{folder}/{name}_{size}.onnx"
            write_operator(build, sizes[size], path)
    for cell, *sizes in RECURRENCES:
        name = f"{cell} {' x '.join(map(str, sizes))}"
        found[name] = path = f"{folder}/{name.replace(' ', '_')}.onnx"
        recurrent.layer(cell, *sizes, path)
    for name in PROGRAMS:
        found[name] = path = f"{folder}/{name}.onnx"
        contest.write_model(name, "f16" if precision == "f16" else "f32", *programs.programs(1)[name], path)
    # Their inputs are f16, whatever the precision.
    for name, (head, causal) in ATTENTION.items() if precision == "f16" else ():
        found[name] = path = f"{folder}/{name.replace(' ', '_')}.onnx"
        write_attention(head, causal, path)
    return found


def write_attention(head, causal, path):
    """Softmax attention of f16 inputs, [heads, tokens, head] each, as far as the diagonal if it is causal."""
    import numpy as np
    import onnx
    graph = operators.Graph(18)
    shape = (ATTENTION_HEADS, ATTENTION_TOKENS, head)
    q, k, v = (graph.input(*shape, dtype="f16") for _ in range(3))
    scores = graph.Mul(graph.MatMul(q, graph.Transpose(k, perm=[0, 2, 1])), graph.constant(np.float16(head ** -0.5)))
    if causal:
        scores = graph.Add(scores, np.triu(np.full((ATTENTION_TOKENS,) * 2, -np.inf, np.float16), 1))
    graph.output(graph.MatMul(graph.Softmax(scores, axis=-1), v), dtype="f16")
    onnx.save(graph.model("attention"), path)


def write_operator(build, size, path):
    """An operator of the given size, in f32: the precision is that of its kernels."""
    import onnx
    graph = operators.Graph(18)
    build(graph, *size)
    onnx.save(graph.model(pathlib.Path(path).stem), path)


def check(o, name, path, precision, folder):
    """What each tool says: `clean`, a number of errors, or why it said nothing."""
    artifact = f"{path}.{precision}.orc" if path.startswith(folder) else f"{folder}/{name}.{precision}.orc"
    try:
        contest.compile_model(o.orchestrion, path, artifact, "cuda", precision)
    except RuntimeError as error:
        return dict.fromkeys(TOOLS, f"not compiled: {str(error).splitlines()[0]}")
    return {tool: finding(o, tool, artifact) for tool in TOOLS}


def finding(o, tool, artifact):
    command = [o.sanitizer, "--tool", tool, "--error-exitcode", "9", o.orchestrion, "run", artifact]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=o.limit_s)
    except subprocess.TimeoutExpired:
        return f"not done in {o.limit_s:.0f} s"
    said = [line.removeprefix("========= ") for line in done.stdout.splitlines() if line.startswith("=========")]
    return judged(done.returncode, said, done.stderr.splitlines())


def judged(code, said, complaints):
    """What a tool's exit code and lines mean. A tool that did its work ends with `ERROR SUMMARY: 2 errors`, or, for races,
    `RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)`."""
    summary = next((line for line in reversed(said) if "SUMMARY: " in line), None)
    if summary is None:
        return (said or complaints or [f"failed: exit code {code}"])[-1]
    found = re.search(r"SUMMARY: (\d+) \w+", summary)
    if found and int(found.group(1)):
        return found.group().removeprefix("SUMMARY: ")
    return "clean" if code == 0 else (complaints or [f"failed: exit code {code}"])[-1]


def version(o):
    """The tool's version, as `Version 2025.3.0.0 (build ..)` in what it says of itself."""
    said = subprocess.run([o.sanitizer, "--version"], capture_output=True, text=True).stdout
    return next((line.strip() for line in said.splitlines() if line.startswith("Version")), said.strip())


def device():
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0].split(", ")
    return f"{name}, driver {driver}"


def write_report(o, rows):
    lines = ["# Kernels under compute-sanitizer", "",
             "Written by `bench/gpu/sanitize.py`. `clean`: the tool reports nothing.", "",
             f"{device()}; compute-sanitizer {version(o)}; Orchestrion {o.commit}; {time.strftime('%Y-%m-%d')}.", "",
             "| case | precision | tool | finding |", "|---" * 4 + "|"]
    with open(f"{o.out}/sanitizer.md", "w") as file:
        file.write("\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n")


def main():
    o = options()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in o.precision:
            models = write_models(o, folder, precision)
            with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
                results = pool.map(lambda item: check(o, *item, precision, folder), models.items())
                for name, found in zip(models, results):
                    rows += [(name, precision, tool, said) for tool, said in found.items()]
                    for row in rows[-len(found):]:
                        print(*row, sep="  ", flush=True)
    clean = sum(row[-1] == "clean" for row in rows)
    print(f"{clean} of {len(rows)} clean")
    if o.out:
        write_report(o, rows)
    sys.exit(0 if clean == len(rows) else 1)


if __name__ == "__main__":
    main()
