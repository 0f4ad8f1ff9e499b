"""Failures of a GPU, its driver and its compiler, provoked: what `orchestrion` says of each, and its exit code.

usage: python3 bench/gpu/failures.py [--orchestrion FILE] [--nvrtc FILE] [--limit-s SECONDS]

Prints a line for each case: `ok`, `FAIL` with what was said, or `skip` with the reason. The exit code is 1 if one failed.
A case fails if the exit code is another, what was said lacks one of the words expected, a panic is told, or a signal ended
the process. Cases that need a GPU are skipped where there is none, those of NVRTC and of executables where there is no
NVRTC. Memory is taken away by a process of this script, by the driver's own functions.

Not provoked, because no valid input does: an illegal address in a kernel, a lost device, a source that NVRTC refuses, a
driver that is too old. The tests `devices` and `refused_sources_are_kept` of `crates/orchestrion-cli/tests/bad_input` do
that with a driver and an NVRTC made for it.
"""
import argparse, ctypes, json, os, shutil, subprocess, sys, tempfile

import contest

# As `orchestrion` documents them; a panic is 101.
WRONG_INPUT, ENVIRONMENT = 1, 4
STUBS = ["/usr/local/cuda/lib64/stubs/libcuda.so", "/usr/local/cuda/targets/x86_64-linux/lib/stubs/libcuda.so"]

# Takes all memory of the first device but so many bytes, says so, and holds it until its standard input ends.
TAKE = """
import ctypes, sys
cuda, left, free, total, address = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1]), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
def do(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status: sys.exit(f"{name}: {status}")
context = ctypes.c_void_p()
do("cuInit", 0)
do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
do("cuCtxSetCurrent", context)
chunk = 1 << 30
while chunk >= 1 << 20:
    do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    if free.value < left + chunk or cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(chunk)): chunk >>= 1
print("taken", flush=True)
sys.stdin.read()
"""


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrion", default=shutil.which("orchestrion") or "target/release/orchestrion")
    parser.add_argument("--nvrtc", help="NVRTC's library (default: what `orchestrion doctor` finds)")
    parser.add_argument("--limit-s", type=float, default=120, help="seconds of one call")
    return parser.parse_args()


class Missing(Exception):
    """What a case needs and this machine lacks."""


class Failures:
    """The cases' files in a folder, what there is of a machine, and how many cases failed or were skipped."""

    def __init__(self, o, folder):
        self.o, self.folder, self.failed, self.skipped, self.calls = o, folder, 0, 0, 0
        doctor = json.loads(self.call("doctor", "--json", "--no-calibration", *self.nvrtc_option()).stdout)["cuda"]
        self.device = doctor["devices"][0] if doctor["devices"] else None
        self.nvrtc = doctor["nvrtc"] and doctor["nvrtc"]["path"]

    def nvrtc_option(self):
        return ["--nvrtc", self.o.nvrtc] if self.o.nvrtc else []

    def path(self, name):
        return os.path.join(self.folder, name)

    def call(self, *arguments, **environment):
        """One call, with a cache that nothing is in: what is compiled is compiled then."""
        self.calls += 1
        set = {"ORCHESTRION_CACHE": self.path(f"cache{self.calls}"), **environment}
        return subprocess.run([self.o.orchestrion, *arguments], capture_output=True, text=True, errors="replace", cwd=self.folder,
                              env=os.environ | set, timeout=self.o.limit_s)

    def needs_device(self):
        if not self.device:
            raise Missing("no GPU")

    def needs_nvrtc(self):
        if not self.nvrtc:
            raise Missing("no NVRTC")

    def compiled(self, name, target, *further):
        """An executable of the model NAME.onnx."""
        self.needs_nvrtc()
        if target == "cuda":
            self.needs_device()
        artifact = f"{name}.{target.replace(':', '.')}.orc"
        if not os.path.exists(self.path(artifact)):
            done = self.call("compile", f"{name}.onnx", "--target", target, "-q", "-o", artifact, *self.nvrtc_option(), *further)
            if done.returncode:
                raise RuntimeError(f"compiling {name} for {target}: exit {done.returncode}: {done.stderr.strip()}")
        return artifact

    def case(self, title, code, words, provoke):
        """`provoke` makes the call, which must end with this code and say all these words."""
        try:
            done = provoke()
        except Missing as reason:
            self.skipped += 1
            return print(f"skip {title}: {reason}", flush=True)
        except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            wrong, said = [f"not provoked ({type(error).__name__})"], str(error)
        else:
            said = done.stderr
            wrong = [f"exit {done.returncode} instead of {code}"] if done.returncode != code else []
            wrong += [f"does not say `{word}`" for word in words if word not in said]
            wrong += ["panics"] if "panicked at" in said else []
        self.failed += bool(wrong)
        if wrong:
            print(f"FAIL {title}: {'; '.join(wrong)}\n     " + said.strip().replace("\n", "\n     "), flush=True)
        else:
            print(f"ok   {title}: exit {code}: {said.removeprefix('error: ').splitlines()[0][:120] if said else ''}", flush=True)


def write_models(failures):
    """small.onnx; taken.onnx, with 4 GiB between its kernels; and big.onnx, with 298 GiB there."""
    def between(m, a, b, c):
        return m.op("MatMul", m.op("Sigmoid", m.op("MatMul", a, b)), c)

    for name, rows, columns in [("small", 256, 256), ("taken", 32768, 32768), ("big", 400_000, 200_000)]:
        inputs = {"a": (rows, 64), "b": (64, columns), "c": (columns, 64)}
        contest.write_model(name, "f32", between, inputs, (rows, 64), failures.path(f"{name}.onnx"))


def written(failures, name, content):
    with open(failures.path(name), "wb") as file:
        file.write(content)
    return os.path.join(".", name)


def drivers(failures):
    def run_with(*arguments, **environment):
        return lambda: failures.call("run", failures.compiled("small", "cuda:sm_90"), *arguments, **environment)

    absent = "/nonexistent/libcuda.so.1"
    advice = ["the executable is for a GPU (sm_90)", "https://www.nvidia.com/drivers"]
    failures.case("no driver", ENVIRONMENT, [absent, *advice], run_with("--cuda-driver", absent))
    failures.case("no driver, by the environment", ENVIRONMENT, [absent, *advice], run_with(ORCHESTRION_CUDA_DRIVER=absent))
    text = written(failures, "text.so", b"not a library")
    failures.case("a driver that is no library", ENVIRONMENT, [text, *advice], run_with("--cuda-driver", text))
    failures.case("a driver that is another library", ENVIRONMENT, ["cuDriverGetVersion", "not the library of an NVIDIA driver"],
                  run_with("--cuda-driver", "libm.so.6"))
    compile_here = lambda: failures.call("compile", "small.onnx", "--target", "cuda", "--cuda-driver", absent, *failures.nvrtc_option())
    failures.case("no driver where the GPU is asked for", ENVIRONMENT, [absent, "--target cuda:sm_90"], compile_here)
    stub = next(filter(os.path.exists, STUBS), None)

    def with_stub():
        if not stub:
            raise Missing("no toolkit with a driver for linking")
        return run_with("--cuda-driver", stub)()

    failures.case("a driver for linking only", ENVIRONMENT, [stub, "does not start", "nvidia-smi"], with_stub)

    def hidden():
        failures.needs_device()
        return run_with(CUDA_VISIBLE_DEVICES="")()

    failures.case("a GPU that is hidden", ENVIRONMENT, ["finds no GPU", "CUDA_VISIBLE_DEVICES"], hidden)


def compilers(failures):
    def compile_with(nvrtc):
        def provoke():
            failures.needs_nvrtc()
            return failures.call("compile", "small.onnx", "--target", "cuda:sm_90", "--nvrtc", nvrtc() if callable(nvrtc) else nvrtc)
        return provoke

    def cut(name, share=0.5):
        """The NVRTC that was found, in a folder of its own, whose file of this name is cut off."""
        found = library_file(failures.nvrtc)
        folder = tempfile.mkdtemp(dir=failures.folder)
        for file in os.listdir(os.path.dirname(found)):
            if file.startswith("libnvrtc"):
                os.symlink(os.path.join(os.path.dirname(found), file), os.path.join(folder, file))
        for file in os.listdir(folder):
            if file.startswith(name):
                whole = os.path.realpath(os.path.join(folder, file))
                os.remove(os.path.join(folder, file))
                with open(whole, "rb") as source, open(os.path.join(folder, file), "wb") as target:
                    target.write(source.read(int(os.path.getsize(whole) * share)))
        return os.path.join(folder, os.path.basename(found))

    text = written(failures, "text.so", b"not a library")
    absent = "/nonexistent/libnvrtc.so"
    advice = ["pip install nvidia-cuda-nvrtc", "--nvrtc"]
    failures.case("no NVRTC", ENVIRONMENT, [absent, *advice], compile_with(absent))
    failures.case("an NVRTC that is no library", ENVIRONMENT, [text, *advice], compile_with(text))
    failures.case("an NVRTC that is another library", ENVIRONMENT, ["nvrtcVersion", *advice], compile_with("libm.so.6"))
    for share in (0.001, 0.5, 0.99):
        failures.case(f"{share:.1%} of an NVRTC", ENVIRONMENT, ["the file is cut off", *advice],
                      compile_with(lambda share=share: cut("libnvrtc.so", share)))
    failures.case("half of what NVRTC needs besides", ENVIRONMENT, ["libnvrtc-builtins.so", "the file is cut off", *advice],
                  compile_with(lambda: cut("libnvrtc-builtins.so")))


def library_file(name):
    """The file that the loader finds under this name."""
    if os.path.dirname(name):
        return os.path.abspath(name)
    ctypes.CDLL(name)
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if os.path.basename(line.split()[-1]).startswith(name))


def executables(failures):
    def changed(change):
        def provoke():
            with open(failures.path(failures.compiled("small", "cuda:sm_90")), "rb") as file:
                return failures.call("run", written(failures, "changed.orc", change(file.read())))
        return provoke

    def flipped(content):
        # Code of kernels begins like every file of its kind.
        at = content.index(b"\x7fELF") + 1000
        return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1:]

    failures.case("an executable with damaged kernels", WRONG_INPUT, ["changed.orc", "damaged"], changed(flipped))
    failures.case("half of an executable", WRONG_INPUT, ["changed.orc"], changed(lambda content: content[:len(content) // 2]))

    def other():
        failures.needs_device()
        return failures.call("run", failures.compiled("small", f"cuda:{other_arch(failures)}"))

    words = ["compute capability", failures.device["capability"], "compile it again"] if failures.device else []
    failures.case("an executable for another GPU", ENVIRONMENT, words, other)


def other_arch(failures):
    """An instruction set that the device does not run."""
    return "sm_80" if not failures.device["capability"].startswith("8.") else "sm_90"


class Taken:
    """A device whose memory is taken by another process, but for so many bytes."""

    def __init__(self, left):
        self.process = subprocess.Popen([sys.executable, "-c", TAKE, str(left)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        if self.process.stdout.readline() != "taken\n":
            raise RuntimeError(f"memory cannot be taken: {self.process.stderr.read()}")

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def memory(failures):
    def run(name, left=None):
        def provoke():
            artifact = failures.compiled(name, "cuda")
            if left is None:
                return failures.call("run", artifact)
            with Taken(left):
                return failures.call("run", artifact)
        return provoke

    advice = ["out of device memory", "nvidia-smi", "smaller"]
    failures.case("a model that fits", 0, [], run("taken"))
    big = ["working memory", "298.0 GiB needed", "GiB free", *advice]
    failures.case("a model that no GPU holds", ENVIRONMENT, big, run("big"))
    taken = ["working memory", "4.0 GiB needed", "free", *advice]
    failures.case("a model for which others left too little memory", ENVIRONMENT, taken, run("taken", 2 << 30))
    failures.case("no memory at all", ENVIRONMENT, advice, run("taken", 0))
    failures.case("the same model when they have gone", 0, [], run("taken"))

    def tuned():
        failures.needs_device()
        failures.needs_nvrtc()
        return failures.call("compile", "big.onnx", "--target", "cuda", "--tune", *failures.nvrtc_option())

    failures.case("kernels that no GPU holds, measured", ENVIRONMENT, ["GiB needed", *advice], tuned)


def main():
    o = options()
    o.orchestrion = os.path.abspath(shutil.which(o.orchestrion) or o.orchestrion)
    o.nvrtc = o.nvrtc and library_file(o.nvrtc)
    with tempfile.TemporaryDirectory() as folder:
        failures = Failures(o, folder)
        device = failures.device
        print(f"{device['name']}, driver for CUDA {device['driver']}" if device else "no GPU", f"NVRTC {failures.nvrtc}", sep="; ")
        write_models(failures)
        for group in (drivers, compilers, executables, memory):
            group(failures)
    print(f"{failures.failed} failed, {failures.skipped} skipped")
    sys.exit(1 if failures.failed else 0)


if __name__ == "__main__":
    main()
