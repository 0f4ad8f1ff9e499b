"""Numbered pieces of work in processes of their own: ONNX Runtime may die of a graph, and the run goes on."""

import multiprocessing
import threading

# ONNX Runtime may also go on for ever.
MOST_SECONDS = 600

_context = multiprocessing.get_context("fork")


def _serve(function, connection):
    while True:
        index = connection.recv()
        if index is None:
            return
        connection.send(function(index))


class _Worker:
    def __init__(self, function):
        self.connection, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(function, theirs), daemon=False)
        self.process.start()
        theirs.close()

    def ask(self, index):
        self.connection.send(index)
        if not self.connection.poll(MOST_SECONDS):
            self.process.kill()
        return self.connection.recv()

    def stop(self):
        try:
            self.connection.send(None)
        except OSError:
            pass
        self.process.join(5)
        if self.process.is_alive():
            self.process.terminate()


def for_each(function, indices, jobs, report, died):
    """Calls `function(index)` in `jobs` processes and `report(index, result)` here.

    `died(index)` is the result if the process ends before it answers.
    """
    waiting, lock = iter(indices), threading.Lock()

    def serve():
        worker = None
        try:
            while True:
                with lock:
                    index = next(waiting, None)
                if index is None:
                    return
                if worker is None:
                    worker = _Worker(function)
                try:
                    result = worker.ask(index)
                except (EOFError, OSError):
                    worker.stop()
                    worker, result = None, died(index)
                with lock:
                    report(index, result)
        finally:
            if worker is not None:
                worker.stop()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
