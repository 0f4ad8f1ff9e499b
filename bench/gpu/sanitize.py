"""Kernels under NVIDIA's compute-sanitizer: out-of-bounds and misaligned accesses, races in shared memory, wrong barriers.

usage: python3 bench/gpu/sanitize.py [MODEL.onnx ...] [--precision f16,f32] [--orchestrion FILE] [--out FOLDER]

Runs small cases of every template (products, convolutions, norms, reductions, transposition), programs of the Mirage paper,
and the given models, each compiled by `orchestrion` and run once under each tool, several side by side. Prints a line for each, and with
--out writes FOLDER/gpu-sanitizer.md. The exit code is 1 if a tool reports anything.
"""
import argparse, concurrent.futures, os, shutil, subprocess, sys, tempfile, time

import contest, kernels, programs

TOOLS = ["memcheck", "racecheck", "synccheck"]
PROGRAMS = ["gqa_inc", "gqa_spec", "mha_prefill", "qknorm_gqa", "mlp_adapter", "lora", "rmsnorm_linear", "gated_mlp", "ntrans"]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--precision", default="f16,f32")
    parser.add_argument("--orchestrion", default=shutil.which("orchestrion") or "target/release/orchestrion")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=120, help="seconds of one run")
    parser.add_argument("--commit", default="", help="what was checked, for the report")
    parser.add_argument("--out")
    return parser.parse_args()


def cases():
    found = [kernels.gemm("gemm", *shape) for shape in [(5, 96, 80), (200, 264, 136), (130, 72, 1000), (1, 512, 512)]]
    found += [kernels.conv(*block) for block in [(3, 30, 24, 7, 2), (32, 14, 64, 3, 1), (64, 14, 40, 1, 2)]]
    return found + [kernels.memory(kind, 33, 520) for kind in kernels.MEMORY]


def write_models(o, folder, precision):
    """Small models as files, by name."""
    found = {os.path.basename(path).removesuffix(".onnx"): path for path in o.models}
    for number, case in enumerate(cases()):
        found[f"{case.group} {case.name}"] = path = f"{folder}/case{number}.onnx"
        case.write(precision, path)
    for name in PROGRAMS:
        found[name] = path = f"{folder}/{name}.onnx"
        contest.write_model(name, "f16" if precision == "f16" else "f32", *programs.programs(1)[name], path)
    return found


def check(o, name, path, precision, folder):
    """What each tool says: `clean`, or its last line."""
    artifact = f"{path}.{precision}.orc" if path.startswith(folder) else f"{folder}/{name}.{precision}.orc"
    try:
        contest.compile_model(o.orchestrion, path, artifact, "cuda", precision)
    except RuntimeError as error:
        return {"compile": str(error).splitlines()[0]}
    found = {}
    for tool in TOOLS:
        command = [o.sanitizer, "--tool", tool, "--error-exitcode", "9", o.orchestrion, "run", artifact]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=o.limit_s)
        except subprocess.TimeoutExpired:
            found[tool] = f"not done in {o.limit_s:.0f} s"
            continue
        said = [line.removeprefix("========= ") for line in done.stdout.splitlines() if line.startswith("=========")]
        found[tool] = "clean" if done.returncode == 0 else (said or done.stderr.splitlines() or ["failed"])[-1]
    return found


def main():
    o = options()
    lines, is_clean = [], True
    with tempfile.TemporaryDirectory() as folder:
        for precision in o.precision.split(","):
            models = write_models(o, folder, precision)
            with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
                results = pool.map(lambda item: check(o, *item, precision, folder), models.items())
                for name, found in zip(models, results):
                    is_clean &= all(said == "clean" for said in found.values())
                    lines.append(f"| {name} | {precision} | " + " | ".join(found.get(tool, found.get("compile", "")) for tool in TOOLS) + " |")
                    print(lines[-1], flush=True)
    if o.out:
        version = subprocess.run([o.sanitizer, "--version"], capture_output=True, text=True).stdout.split("\n")[2:3]
        device = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
        head = ["# Kernels under compute-sanitizer", "", "Written by `bench/gpu/sanitize.py`.", "",
                f"{device}; {' '.join(version).strip()}; Orchestrion {o.commit}; {time.strftime('%Y-%m-%d')}.", "",
                "| model | precision | " + " | ".join(TOOLS) + " |", "|---" * (len(TOOLS) + 2) + "|"]
        with open(f"{o.out}/gpu-sanitizer.md", "w") as file:
            file.write("\n".join([*head, *lines]) + "\n")
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
