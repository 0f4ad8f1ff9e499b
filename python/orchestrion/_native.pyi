"""Types of the native module."""

import os
from collections.abc import Callable
from typing import Any

__version__: str

_Source = bytes | str | os.PathLike[str]

class Executable:
    def run(self, tensors: tuple[Any, ...], named: dict[str, Any], out: Any = None) -> Any: ...
    def context(self) -> Context: ...
    @property
    def inputs(self) -> list[tuple[str, str, tuple[int, ...]]]: ...
    @property
    def outputs(self) -> list[tuple[str, str, tuple[int, ...]]]: ...
    @property
    def updatable(self) -> list[tuple[str, str, tuple[int, ...]]]: ...
    def set_constants(self, values: dict[str, Any]) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def to_bytes(self) -> bytes: ...
    def emit(self, kind: str) -> str: ...
    def explain(self, tensors: tuple[Any, ...] | None = None) -> str: ...
    def manifest(self) -> str: ...
    def verify(
        self,
        tensors: tuple[Any, ...],
        model: str | os.PathLike[str] | None = None,
        tolerance: float | None = None,
    ) -> str: ...

class Context:
    def run(self, tensors: tuple[Any, ...], named: dict[str, Any], out: Any = None) -> Any: ...

class Graph:
    def __init__(
        self,
        executable: Executable,
        inputs: list[tuple[int, list[int] | None]],
        outputs: list[Any],
        copies: int,
        checks_indices: bool,
    ) -> None: ...
    def run(self, tensors: list[Any]) -> tuple[list[Any], list[Any]]: ...

def compile(
    model: _Source, options: dict[str, Any], progress: Callable[[str, int, int], None] | None = None
) -> Executable: ...
def compile_aten(
    document: bytes,
    options: dict[str, Any],
    fixed: dict[str, Any],
    progress: Callable[[str, int, int], None] | None = None,
) -> Executable: ...
def superoptimize(
    kind: str,
    source: _Source,
    options: dict[str, Any],
    fixed: dict[str, Any],
    measure: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Executable, str]: ...
def load(
    source: _Source, threads: int = 0, device: int = 0, cuda_files: dict[str, list[str]] = ...
) -> Executable: ...

_Ports = list[tuple[str, str | None, tuple[int | str, ...]]]

def declaration(model: _Source) -> tuple[_Ports, _Ports]: ...
