"""Threads, forks, interruptions, memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import numbers

import orchestrion as orc


def resident_kib() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def test_threads_share_an_executable(exe: orc.Executable) -> None:
    """Contexts that other threads are running in are dropped, and calls fail in between; no memory stays behind."""
    inputs = [numbers(5, 6, seed=seed) for seed in range(8)]
    want = [exe(x) for x in inputs]
    contexts = [exe.context() for _ in range(4)]

    def work(number: int) -> None:
        for call in range(1000):
            run = contexts[call % 4] if call % 3 == 0 else exe
            if call % 50 == number:
                contexts[call % 4] = exe.context()
                with pytest.raises(orc.InputError):
                    run(inputs[number][:, :5])
            for got, expect in zip(run(inputs[number]), want[number], strict=True):
                np.testing.assert_array_equal(got, expect)

    def round_of_threads() -> int:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        return resident_kib()

    before = round_of_threads()
    assert round_of_threads() - before < 4096, "KiB"


def test_a_context_outlives_its_executable(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    context = pickle.loads(pickle.dumps(exe)).context()
    gc.collect()
    assert np.array_equal(context(x)[0], exe(x)[0])


def test_memory_stays_flat(exe: orc.Executable) -> None:
    x = numbers(5, 6)

    def calls(count: int) -> int:
        for call in range(count):
            exe(x)
            exe.context()(x)
            try:
                exe(x, x)
            except orc.UsageError:
                pass
            if call % 100 == 0:
                exe(np.asfortranarray(x))
        return resident_kib()

    before = calls(2000)
    assert calls(6000) - before < 4096, "KiB"


def _in_child(exe: orc.Executable, x: np.ndarray, want: np.ndarray) -> None:
    assert np.array_equal(exe(x)[0], want)
    os._exit(0)


def test_forked_processes_run(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    want = exe(x)[0]
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(exe, x, want))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert np.array_equal(exe(x)[0], want)


def test_interruption_ends_a_compilation(tmp_path: Path) -> None:
    program = """
import sys, os, signal, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np, onnx, orchestrion as orc, conftest
from onnx import helper
nodes, constants = [], {}
last = "x"
for number in range(60):
    constants[f"w{number}"] = np.ones((64 + number, 64 + number + 1), np.float32)
    nodes += [helper.make_node("MatMul", [last, f"w{number}"], [f"p{number}"]), helper.make_node("Softmax", [f"p{number}"], [f"s{number}"])]
    last = f"s{number}"
model = conftest.model(nodes, [conftest.value("x", [64, 64])], [conftest.value(last, [64, 124])], constants)
threading.Thread(target=lambda: (time.sleep(0.7), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
try:
    orc.compile(model, cache_dir=sys.argv[2], calibrate=False, jobs=1, progress=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    start = time.monotonic()
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path / "cache")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "interrupted\n", result.stderr
    assert time.monotonic() - start < 60


def test_a_call_lets_other_threads_run(exe: orc.Executable) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(None)
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(200):
        exe(numbers(5, 6))
    stop.set()
    thread.join()
    assert ticks
