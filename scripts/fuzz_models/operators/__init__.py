"""One recipe for each operator, in files by class."""

from . import (
    control,
    convolution,
    elementwise,
    gather,
    layout,
    linear,
    normalise,
    quantised,
    reduce,
    resample,
    signal,
)  # noqa: F401
from .registry import RECIPES  # noqa: F401
