#!/usr/bin/env python3
"""Two models in one process, called by eight threads on all cores: throughput of Orchestrion, ONNX Runtime and OpenVINO, all in f32.

    callers.py [NAME NAME] [--callers 8] [--rounds 5] [--seconds 2] [--out FILE]

Each engine runs in a process of its own with both models loaded. Its callers call the two in turn, until the time of a turn is over, each
with tensors of its own; a turn's figure is how many pairs of calls a second ended. Engines take turns in rotating order, medians count. Peers
are set up in two ways each: as for one caller, and as for many (ONNX Runtime: one thread a call; OpenVINO: its hint for throughput).

Needs the Python package of the project, which is built by `scripts/wheel.sh`. Prints a table; FILE gets all turns as JSON.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import cpu
import zoo


def orchestrion(path, inputs):
    import orchestrion as orc
    executable = orc.compile(path)

    def caller():
        context, given = executable.context(), [value.copy() for value in inputs]
        return lambda: context(*given)

    return caller


def onnxruntime(path, inputs, threads=0):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]

    def caller():
        given = {name: value.copy() for name, value in zip(names, inputs)}
        return lambda: session.run(None, given)

    return caller


def onnxruntime_single(path, inputs):
    return onnxruntime(path, inputs, threads=1)


def openvino(path, inputs, hint="LATENCY"):
    import openvino as ov
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": hint})

    def caller():
        request, given = compiled.create_infer_request(), [value.copy() for value in inputs]
        for number, value in enumerate(given):
            request.set_input_tensor(number, ov.Tensor(value, shared_memory=True))
        return request.infer

    return caller


def openvino_throughput(path, inputs):
    return openvino(path, inputs, hint="THROUGHPUT")


ENGINES = {engine.__name__: engine for engine in (orchestrion, onnxruntime, onnxruntime_single, openvino, openvino_throughput)}


def serve(engine, folders, callers):
    """Answers each line `turn SECONDS` with the pairs of calls that ended in a second."""
    models = [ENGINES[engine](str(folder / "model.onnx"), zoo.inputs(folder)) for folder in map(pathlib.Path, folders)]
    calls = [[make() for make in models] for _ in range(callers)]
    for one in calls:
        for call in one:
            call()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, ended = float(line.split()[1]), [0] * callers
        start, end = threading.Barrier(callers + 1), threading.Event()

        def work(number):
            start.wait()
            while not end.is_set():
                for call in calls[number]:
                    call()
                ended[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        start.wait()
        begin = time.perf_counter()
        time.sleep(seconds)
        end.set()
        for thread in threads:
            thread.join()
        print(sum(ended) / (time.perf_counter() - begin), flush=True)


def turn(process, seconds):
    process.stdin.write(f"turn {seconds}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=["resnet50", "distilbert"], help="two models of the zoo")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--serve", metavar="ENGINE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.names, args.callers)
    folders = list(zoo.folders(args.names))
    command = [sys.executable, __file__, *map(str, folders), "--callers", str(args.callers), "--serve"]
    processes, rates = {}, {}
    for name in ENGINES:
        process = subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if process.stdout.readline().strip() == "ready":
            processes[name], rates[name] = process, []
        else:
            print(f"{name} did not start: exit code {process.wait()}", file=sys.stderr)
    names = tuple(processes)
    for number in range(args.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rates[name].append(turn(processes[name], args.seconds))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    report = {"machine": cpu.machine(), "models": args.names, "callers": args.callers, "pairs_a_second": rates}
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    best = max(rate for name, rate in medians.items() if name != "orchestrion")
    print(f"{' and '.join(folder.name for folder in folders)}, {args.callers} callers, {len(os.sched_getaffinity(0))} CPUs; pairs a second")
    for name, rate in medians.items():
        print(f"| {name} | {rate:.2f} |" + (f" {rate / best:.2f} of the best peer |" if name == "orchestrion" else " |"))


if __name__ == "__main__":
    main()
