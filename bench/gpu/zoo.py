"""Every model of the zoo on a GPU: what it computes beside what ONNX Runtime computes on a CPU.

usage: python3 bench/gpu/zoo.py [MODEL ...] [--precision f32,f16] [--zoo FOLDER] [--target cuda] [--out FOLDER]

Each model is compiled and run once on each of its first sets of inputs (--sets); `error` is the largest error of an output relative to
ONNX Runtime's in f32, by Euclidean norm, and must stay below 1e-4 in f32 and 5e-2 in f16. An output of integers counts by the share of
elements that differ. With --out, rows are added to FOLDER/zoo-gpu.json and FOLDER/zoo-gpu.md is written from it; --report does
only the latter. The exit code is 1 if a model is not compiled, fails or is off.

Needs models with references as `fill.py --reference` of the zoo writes them.
"""
import glob, json, os, subprocess, sys, tempfile, time

import contest, sanitize

LIMITS = {"f32": 1e-4, "f16": 5e-2}


def options():
    parser = contest.arguments(__doc__)
    parser.add_argument("models", nargs="*", help="default: all folders of the zoo")
    parser.add_argument("--precision", type=lambda text: text.split(","), default=list(LIMITS))
    parser.add_argument("--zoo", default="target/zoo")
    parser.add_argument("--sets", type=int, default=3)
    return contest.parsed(parser)


def measure(o, name, precision):
    row = {"model": name}
    with tempfile.TemporaryDirectory() as folder:
        artifact = f"{folder}/model.orc"
        try:
            seconds = contest.compile_model(o.orchestrion, f"{o.zoo}/{name}/model.onnx", artifact, o.target, precision, *o.options.split())
            manifest = contest.manifest_of(o.orchestrion, artifact)
            sets = sorted(glob.glob(f"{o.zoo}/{name}/test_data_set_*"))[:o.sets]
            error = max((contest.model_error(o.orchestrion, artifact, manifest, data) for data in sets), default=0.0)
        except (RuntimeError, subprocess.CalledProcessError) as failed:
            return row | {"finding": str(failed).splitlines()[0][:200], "is_right": False}
    is_right = error <= LIMITS[precision]
    row |= {"steps": len(manifest["steps"]), "compile_s": round(seconds, 1), "error": error}
    return row | {"finding": "right" if is_right else "off", "is_right": is_right}


def write_report(folder):
    lines = ["# The models of the zoo on a GPU", "", "Written by `bench/gpu/zoo.py`. `error`: relative to ONNX Runtime on a CPU in f32, by Euclidean norm, the largest over outputs and",
             "sets of inputs; of integers the share that differs."]
    for table in json.load(open(f"{folder}/zoo-gpu.json")):
        lines += ["", f"## {table['precision']}", "", f"{table['device']}; Orchestrion {table['commit']} {table['options']}; {table['date']}.", "",
                  "| model | error | finding | kernels | compile s |", "|---" * 5 + "|"]
        for row in table["rows"]:
            error = f"{row['error']:.1e}" if "error" in row else ""
            lines.append(f"| {row['model']} | {error} | {row['finding']} | {row.get('steps', '')} | {row.get('compile_s', '')} |")
    with open(f"{folder}/zoo-gpu.md", "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    o = options()
    if o.report:
        return write_report(o.out or "bench/results")
    models = o.models or sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(f"{o.zoo}/*/model.onnx"))
    device = sanitize.device() if o.target.startswith("cuda") else o.target
    start, wrong = time.time(), 0
    for precision in o.precision:
        for name in models:
            if time.time() - start > o.limit_s:
                sys.exit(f"no time left for {name} in {precision} and what follows")
            row = measure(o, name, precision)
            wrong += not row["is_right"]
            print(precision, *(f"{key} {value}" for key, value in row.items() if key != "is_right"), flush=True)
            if o.out:
                facts = {"commit": o.commit, "options": o.options, "date": time.strftime("%Y-%m-%d")}
                contest.put_table(f"{o.out}/zoo-gpu.json", {"device": device, "precision": precision}, facts, "model", row, models)
                write_report(o.out)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
