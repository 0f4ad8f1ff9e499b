"""Tensors that take a detour on their way to or from the native module, which calls these functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from orchestrion._errors import InputError

#: NumPy's names of the element types that it has itself.
NAMES = {
    "bool": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type for an element type by its name in Orchestrion (`f32`, `i64`, `bf16`, ..)."""
    if name == "bf16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise InputError("NumPy has no bf16 by itself: install `ml_dtypes`, or use PyTorch's tensors") from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(NAMES[name])


def plain(value: Any, port: str, dtype: str, what: str) -> tuple[np.ndarray[Any, Any], str | None]:
    """An array that can be exported by DLPack, and the type of its elements where DLPack cannot say it.

    `value` is meant for the input or output (`what`) `port` of type `dtype`. Numbers and sequences are converted to that type where
    no value can change its kind; arrays keep theirs.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif what == "output":
        raise InputError(f"the memory given for output `{port}` is a {type(value).__name__}, which is no tensor")
    else:
        try:
            array = np.asarray(value)
            if not hasattr(value, "__array__"):
                array = array.astype(dtype_of(dtype), casting="same_kind")
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} `{port}` is no tensor of {dtype}: {error}") from error
    if what == "output" and not array.flags.writeable:
        raise InputError(f"the memory given for output `{port}` is read-only")
    if array.dtype.name == "bfloat16":
        return _exportable(array.view(np.uint16)), "bf16"
    if array.dtype == np.bool_:
        return _exportable(array.view(np.uint8)), "bool"
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} `{port}` has elements of NumPy's type {array.dtype}; the model was compiled for {dtype}")
    if not array.dtype.isnative:
        if what == "output":
            raise InputError(f"the memory given for output `{port}` has the byte order of another machine")
        array = array.astype(array.dtype.newbyteorder("="))
    return _exportable(array), None


def _exportable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same elements in an array that every version of NumPy exports: not a read-only one, whose copy serves as well."""
    return array if array.flags.writeable else array.copy()


def finished(array: np.ndarray[Any, Any], dtype: str, like: Any) -> Any:
    """An output as it is returned: of its type, and of the library that `like` is of."""
    if dtype == "bool":
        array = array.view(np.bool_)
    elif dtype == "bf16":
        array = array.view(dtype_of(dtype))
    if like is None or not hasattr(like, "__array_namespace__"):
        return array
    return like.__array_namespace__().from_dlpack(array)
