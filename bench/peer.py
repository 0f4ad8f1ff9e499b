#!/usr/bin/env python3
"""A peer behind the protocol of `orchestrion bench --serve`.

    peer.py onnxruntime|openvino|openvino-default FOLDER THREADS

loads FOLDER/model.onnx and the inputs of FOLDER/test_data_set_0, says `ready N` (N: KiB that the process held before
it loaded the model), then answers each line `run N` of standard input with N times in milliseconds.

Inputs and outputs lie in memory that is bound beforehand, so that no run copies or allocates them; what the clock sees
of Python is about a microsecond.
"""
import pathlib
import sys
import time

import numpy as np

import zoo


def onnxruntime(model, inputs, threads):
    """A function that runs the model once."""
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for port, value in zip(session.get_inputs(), inputs):
        binding.bind_ortvalue_input(port.name, ort.OrtValue.ortvalue_from_numpy(value))
    names = [port.name for port in session.get_outputs()]
    fed = {port.name: value for port, value in zip(session.get_inputs(), inputs)}
    for name, value in zip(names, session.run(names, fed)):
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)))
    return lambda: session.run_with_iobinding(binding)


def openvino(model, inputs, threads):
    """A function that runs the model once, in f32: by itself OpenVINO computes in bf16 where the CPU has it."""
    return openvino_as_told(model, inputs, threads, {"INFERENCE_PRECISION_HINT": "f32"})


def openvino_default(model, inputs, threads):
    """A function that runs the model once, in the precision that OpenVINO takes by itself."""
    return openvino_as_told(model, inputs, threads, {})


def openvino_as_told(model, inputs, threads, precision):
    import openvino as ov
    settings = precision | {
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    for number, value in enumerate(inputs):
        request.set_input_tensor(number, ov.Tensor(value, shared_memory=True))
    return request.infer


ENGINES = {"onnxruntime": onnxruntime, "openvino": openvino, "openvino-default": openvino_default}


def resident_kib():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def main():
    engine, folder, threads = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    __import__(engine.removesuffix("-default"))
    before = resident_kib()
    run = ENGINES[engine](str(folder / "model.onnx"), zoo.inputs(folder), threads)
    run()
    print(f"ready {before}", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line.removeprefix("run "))):
            start = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - start) / 1e6)
        print(" ".join(f"{value:.6f}" for value in times), flush=True)


main()
