#!/usr/bin/env python3
"""One model through Python, `torch.compile`, C and the command line, beside eager PyTorch and Inductor: latency of a call.

    latency.py [--models resnet50 bert-base] [--threads N] [--rounds N] --orchestrion PROGRAM --library LIBORCHESTRION

All are timed in turns; the median of the rounds counts. Weights are random; `torch.compile` runs with and without `freeze`. Python, C and
the command line run the same `.orc` file, which `orchestrion.torch.export` makes.
"""

import argparse
import ctypes
import pathlib
import statistics
import subprocess
import tempfile
import time

import orchestrion
import torch
from orchestrion import torch as ours

DTYPES = {torch.float32: 12, torch.int64: 5}


class Tensor(ctypes.Structure):
    """`orc_tensor`."""

    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_size_t),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p)]

    @classmethod
    def of(cls, tensor):
        shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        return cls(tensor.data_ptr(), DTYPES[tensor.dtype], tensor.dim(), shape, None)


def through_c(library, path, threads, inputs, outputs):
    """A call of `orc_run`."""
    orc = ctypes.CDLL(str(library))
    orc.orc_last_error.restype = ctypes.c_char_p

    def succeeds(status):
        if status:
            raise RuntimeError(orc.orc_last_error().decode())

    options, executable = ctypes.c_void_p(), ctypes.c_void_p()
    succeeds(orc.orc_options_create(ctypes.byref(options)))
    succeeds(orc.orc_options_set(options, b"threads", str(threads).encode()))
    succeeds(orc.orc_load_file(str(path).encode(), options, ctypes.byref(executable)))
    given = (Tensor * len(inputs))(*map(Tensor.of, inputs))
    written = (Tensor * len(outputs))(*map(Tensor.of, outputs))
    return lambda: succeeds(orc.orc_run(executable, given, ctypes.c_size_t(len(given)), written, ctypes.c_size_t(len(written))))


class CommandLine:
    """`orchestrion bench --serve`: a process that times runs when it is asked to."""

    def __init__(self, program, path, threads):
        command = [program, "bench", path, "--serve", "--quiet", "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process.stdout.readline()

    def times(self, runs):
        self._process.stdin.write(f"run {runs}\n")
        self._process.stdin.flush()
        return [float(word) for word in self._process.stdout.readline().split()]


def model_of(name):
    torch.manual_seed(0)
    if name == "resnet50":
        import torchvision

        return torchvision.models.resnet50(weights=None).eval(), (torch.randn(1, 3, 224, 224),)
    from transformers import BertConfig, BertModel

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = BertModel(BertConfig(), add_pooling_layer=False)

        def forward(self, ids):
            return self.model(ids).last_hidden_state

    return Hidden().eval(), (torch.randint(0, 30_000, (1, 128)),)


def row(name, args, folder):
    """Milliseconds of a call by what makes it."""
    model, inputs = model_of(name)
    path = folder / f"{name}.orc"
    ours.export(model, inputs).save(path)
    executable = orchestrion.load(path, threads=args.threads)
    output = model(*inputs)
    compiled = torch.compile(model, backend="orchestrion", options={"freeze": True})
    unfrozen = torch.compile(model, backend="orchestrion")
    inductor = torch.compile(model)
    torch.testing.assert_close(compiled(*inputs), output, rtol=1e-3, atol=1e-3)
    result = torch.empty_like(output)
    in_c = through_c(args.library, path, args.threads, inputs, [result])
    in_c()
    torch.testing.assert_close(result, output, rtol=1e-3, atol=1e-3)
    calls = {
        "Python": lambda: executable(*inputs),
        "torch.compile, frozen": lambda: compiled(*inputs),
        "torch.compile": lambda: unfrozen(*inputs),
        "C": in_c,
        "eager": lambda: model(*inputs),
        "Inductor": lambda: inductor(*inputs),
    }
    command_line = CommandLine(args.orchestrion, path, args.threads)
    times = {call: [] for call in [*calls, "command line"]}
    for _ in range(args.rounds):
        for call, run in calls.items():
            run()
            spent = []
            for _ in range(5):
                start = time.perf_counter()
                run()
                spent.append(1e3 * (time.perf_counter() - start))
            times[call].append(statistics.median(spent))
        times["command line"].append(statistics.median(command_line.times(6)[1:]))
    return {call: statistics.median(found) for call, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "bert-base"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--orchestrion", required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name in args.models:
            found = row(name, args, pathlib.Path(folder))
            print(name, ", ".join(f"{call} {time:.3f} ms" for call, time in found.items()), flush=True)


if __name__ == "__main__":
    main()
