"""Formulas of the standard, in f64, of operators that onnx's reference evaluator lacks, restricts or gets wrong.

Each is a class that the evaluator takes instead of its own.
"""

from .control import Loop
from .pools import GlobalLpPool, LpPool, MaxPool
from .recurrent import GRU, LSTM, RNN
from .sampling import DeformConv, GridSample
from .sums import LRN, BatchNormalization, Det, ReduceLogSumExp

FORMULAS = [
    LpPool,
    GlobalLpPool,
    MaxPool,
    RNN,
    GRU,
    LSTM,
    Loop,
    GridSample,
    DeformConv,
    LRN,
    BatchNormalization,
    Det,
    ReduceLogSumExp,
]
