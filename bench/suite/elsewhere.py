"""Modules of other folders of the benchmarks. Those folders are not in `sys.path` for longer than an import: `bench/kernels.py` would
stand in the way of the package `kernels` that transformers looks for."""
import contextlib
import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(folder, name):
    """The module `name` in a folder below the repository's root."""
    path = str(ROOT / folder)
    sys.path.insert(0, path)
    try:
        return importlib.import_module(name)
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(path)
