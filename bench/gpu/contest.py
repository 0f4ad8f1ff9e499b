"""What the GPU benchmarks share: ONNX models in the making, Orchestrion compiled and served, torch functions as CUDA
graphs, and interleaved timing by the device's clock."""
import argparse, glob, json, math, os, shutil, statistics, subprocess, tempfile, time

ROUNDS, RUNS, WARM_UP = 10, 20, 5
# Cycles of the device in which the host enqueues those runs: about 2 ms.
HELD_CYCLES = 3_500_000


def arguments(description):
    """A parser of what all benchmarks of parts of models take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrion", default=shutil.which("orchestrion") or "target/release/orchestrion")
    parser.add_argument("--target", help="default: cuda")
    parser.add_argument("--options", default="", help="further options of `orchestrion compile`, in one word")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="start nothing after that many seconds")
    parser.add_argument("--out")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--commit", default="", help="what was measured, for the report")
    return parser


def parsed(parser):
    o = parser.parse_args()
    o.target = o.target or ("cuda:sm_90" if o.dry_run else "cuda")
    return o


class Model:
    """An ONNX model in the making: inputs and output of type f16 are cast to f32, and back."""

    def __init__(self, name, io):
        import onnx
        self.onnx, self.name = onnx, name
        half, full = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
        self.input_type, self.output_type = {"f16": (half, half), "f16-in": (half, full), "f32": (full, full)}[io]
        self.nodes, self.inputs, self.constants = [], [], []

    def input(self, name, shape):
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, self.input_type, shape))
        full = self.onnx.TensorProto.FLOAT
        return name if self.input_type == full else self.op("Cast", name, to=full)

    def op(self, kind, *args, **attributes):
        result = f"t{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, args, [result], **attributes))
        return result

    def constant(self, values, kind, shape):
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.helper.make_tensor(name, kind, shape, values))
        return name

    def array(self, values):
        """A constant of an array's type."""
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(values, name))
        return name

    def integers(self, *values):
        return self.constant(values, self.onnx.TensorProto.INT64, [len(values)])

    def scalar(self, value):
        return self.constant([value], self.onnx.TensorProto.FLOAT, [])

    def write(self, result, shape, path):
        """Writes the model; `result` is what the last node gives."""
        helper = self.onnx.helper
        if self.output_type != self.onnx.TensorProto.FLOAT:
            self.op("Cast", result, to=self.output_type)
        self.nodes[-1].output[0] = "o"
        output = helper.make_tensor_value_info("o", self.output_type, shape)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        self.onnx.checker.check_model(model, full_check=True)
        self.onnx.save(model, path)


def write_model(name, io, build, inputs, shape, path):
    """Writes a model: `build` is given the model and the names of its inputs, whose shapes are `inputs` by name."""
    model = Model(name, io)
    model.write(build(model, *[model.input(*given) for given in inputs.items()]), shape, path)


def compile_model(program, path, artifact, target, precision, *further):
    """The seconds that it took."""
    start = time.time()
    command = [program, "compile", path, "--target", target, "--precision", precision, *further, "-q", "-o", artifact]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
    return time.time() - start


def manifest_of(program, artifact):
    command = [program, "explain", artifact, "--json", "--no-measure"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["manifest"]


def steps_of(manifest):
    """Of each step: a name, a schedule, modelled microseconds, and whether the superoptimizer found it."""
    steps = []
    for step in manifest["steps"]:
        action = step["action"]
        kernel = manifest["kernels"][action["kernel"]] if isinstance(action, dict) and "kernel" in action else {}
        spilled = ((kernel.get("team") or {}).get("resources") or {}).get("spill_bytes", 0)
        steps.append({
            "name": kernel.get("name", step["name"]),
            "schedule": kernel.get("schedule", json.dumps(action)[:40]),
            "blocks": kernel.get("tasks"),
            "modelled_us": round(step["cost_us"], 2),
            "found": step.get("proof") is not None,
            "spill_bytes": spilled,
        })
    return steps


def given(files):
    return [word for name, file in files.items() for word in ("-i", f"{name}={file}")]


def result_of(program, artifact, files, folder):
    """The output of one run."""
    import numpy as np
    command = [program, "run", artifact, *given(files), "--output-dir", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return np.load(f"{folder}/o.npy")


def error_of(result, reference):
    """The largest absolute error, relative to the largest magnitude."""
    import numpy as np
    return float(np.abs(result.astype(np.float64) - reference).max() / np.abs(reference).max())


def distance(given, reference):
    """The relative error of one output."""
    import numpy as np
    if reference.dtype.kind in "iub":
        return float((given != reference).mean()) if reference.size else 0.0
    given, reference = given.astype(np.float64), reference.astype(np.float64)
    if given.shape != reference.shape or not np.isfinite(given[np.isfinite(reference)]).all():
        return float("inf")
    return float(np.linalg.norm(given - reference) / max(np.linalg.norm(reference), 1e-30))


def model_error(program, artifact, manifest, data):
    """The largest error of a model's outputs on a set of inputs, beside the outputs that are stored with it."""
    import numpy as np, onnx
    from onnx import numpy_helper
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "run", artifact, "--input-dir", data, "--output-dir", folder]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        for number, port in enumerate(manifest["outputs"]):
            reference = numpy_helper.to_array(onnx.load_tensor(f"{data}/output_{number}.pb"))
            files = glob.glob(f"{folder}/{glob.escape(port['name'])}.npy") or sorted(glob.glob(f"{folder}/*.npy"))[number:]
            worst = max(worst, distance(np.load(files[0]), reference))
    return worst


class Served:
    """Orchestrion in a process of its own, which times itself: in milliseconds, by the device's clock if told so."""

    def __init__(self, program, artifact, files, *flags):
        command = [program, "bench", artifact, "--serve", *flags, *given(files)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline().startswith("ready"):
            raise RuntimeError("orchestrion does not start")
        self.times_ms(WARM_UP)

    def times_ms(self, runs):
        self.process.stdin.write(f"run {runs}\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Graph:
    """A function of torch as a CUDA graph, timed as Orchestrion's `--device-only --cold` times itself."""

    def __init__(self, torch, function, inputs):
        self.inputs = inputs  # The graph reads their memory, which is freed otherwise.
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                function(*inputs)
        torch.cuda.synchronize()
        self.torch, self.graph = torch, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.kept = function(*inputs)
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
        self.times_ms(WARM_UP)

    def times_ms(self, runs):
        event = lambda: self.torch.cuda.Event(enable_timing=True)
        pairs = [(event(), event()) for _ in range(runs)]
        # All is enqueued before any of it starts, as `bench --device-only` does: the host's pace is not in the times.
        self.torch.cuda._sleep(HELD_CYCLES)
        for begin, end in pairs:
            self.flush.zero_()
            begin.record()
            self.graph.replay()
            end.record()
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]

    def end(self):
        pass


def inductor(torch, function):
    """A function by torch.compile with all its tuning, which is done without tables of what was tried."""
    from torch._inductor import config
    for name, value in (("autotune_num_choices_displayed", 0), ("max_autotune_report_choices_stats", False)):
        if hasattr(config, name):
            setattr(config, name, value)
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


def medians_us(runners, rounds=ROUNDS, runs=RUNS):
    """The median microseconds of each of the runners, which take turns; they are ended."""
    times = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            times[name] += runner.times_ms(runs)
    for runner in runners.values():
        runner.end()
    return {name: round(statistics.median(found) * 1e3, 2) for name, found in times.items()}


def geometric_mean(values):
    return math.exp(statistics.mean(map(math.log, values)))


def facts(torch, commit):
    """What a table says of how its rows came about."""
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "commit": commit, "date": time.strftime("%Y-%m-%d")}


def put_table(path, key, facts, name, row, order):
    """Puts a row into the table of a JSON file that has this key; rows are in the order of their names."""
    tables = json.load(open(path)) if os.path.exists(path) else []
    table = next((table for table in tables if all(table[part] == value for part, value in key.items())), None)
    if table is None:
        table = {**key, "rows": []}
        tables.append(table)
    table |= facts
    rows = [other for other in table["rows"] if other[name] != row[name]] + [row]
    table["rows"] = sorted(rows, key=lambda row: order.index(row[name]))
    tables.sort(key=lambda table: tuple(str(table[part]) for part in key))
    with open(path + ".part", "w") as file:
        json.dump(tables, file, indent=1)
    os.replace(path + ".part", path)
