"""What ONNX Runtime and onnx's reference evaluator answer, and how far noise moves the answer."""

import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

IR_VERSION = 10
# Relative noise by type: about 8 units in the last place, 1e-6 for f32.
NOISE = {"float16": 8e-3, "float32": 1e-6, "float64": 2e-15}
NOISY_RUNS = 16

onnxruntime.set_default_logger_severity(4)


class Refused(Exception):
    """An evaluator does not take a model, or fails while running it."""


def _options():
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def onnxruntime_answer(model, inputs):
    """The outputs by ONNX Runtime, without optimisations. `inputs` is name -> array."""
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), _options(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
    except Exception as error:  # pybind's exceptions have no common base
        raise Refused(str(error)) from None


def reference_answer(model, inputs):
    """The outputs by onnx's reference evaluator, with our formulas of some operators."""
    from onnx.reference import ReferenceEvaluator

    from .formulas import FORMULAS

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            names = {i.name for i in model.graph.input}
            answer = ReferenceEvaluator(model, new_ops=FORMULAS).run(
                None, {n: a for n, a in inputs.items() if n in names}
            )
            return [array if isinstance(array, list) else np.asarray(array) for array in answer]
    except Exception as error:  # the evaluator raises whatever numpy raises
        raise Refused(f"{type(error).__name__}: {error}") from None


def value_info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def small_model(nodes, arrays, constants, outputs, opset):
    """A model of a few nodes whose inputs are `arrays` and whose initialisers are `constants`, both name -> array."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [value_info(n, a) for n, a in arrays.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


# Results that are no tensors.
SEQUENCES = {"SequenceConstruct", "SplitToSequence", "SequenceInsert", "SequenceErase", "SequenceEmpty"}


def _is_array(node):
    """Whether numpy can hold the results of a node: no sequences, no bf16."""
    to_bfloat16 = any(a.name == "to" and a.i == onnx.TensorProto.BFLOAT16 for a in node.attribute)
    return node.op_type not in SEQUENCES and not to_bfloat16


def all_values(model, inputs):
    """Name -> array of every value that the nodes of the main graph compute, as far as numpy can hold it."""
    names = [name for node in model.graph.node if _is_array(node) for name in node.output if name]
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, onnxruntime_answer(wide, inputs)))


# Inputs that decide a shape or a count: noise on them asks another question.
EXACT_INPUTS = {"Resize": (1, 2, 3), "Range": (0, 1, 2), "OneHot": (1,)}
# Operators that sum terms which may cancel: their rounding is relative to the largest element, not to each.
SUMS = {
    "MatMul",
    "Gemm",
    "Einsum",
    "Conv",
    "ConvTranspose",
    "DeformConv",
    "Det",
    "DFT",
    "STFT",
    "CumSum",
    "Col2Im",
    "Resize",
    "GridSample",
    "AffineGrid",
    "RoiAlign",
    "ReduceSum",
    "ReduceMean",
    "AveragePool",
    "GlobalAveragePool",
    "Sum",
    "Mean",
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "BatchNormalization",
    "MeanVarianceNormalization",
    "RNN",
    "GRU",
    "LSTM",
    "Loop",
    "Scan",
    "ScatterElements",
    "ScatterND",
    "HannWindow",
    "HammingWindow",
    "BlackmanWindow",
}
# Noise on results of sums relative to their largest element, as a part of the noise relative to each element.
SUM_NOISE = 0.5


@dataclass
class _Noisy:
    """A model where noise is added to values, and the size of the noise by the name of its input."""

    model: onnx.ModelProto
    levels: dict


def _with_noise(model, inputs, values):
    exact = {
        node.input[i] for node in model.graph.node for i in EXACT_INPUTS.get(node.op_type, ()) if i < len(node.input)
    }
    outputs = {o.name for o in model.graph.output}
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    del noisy.graph.node[:]
    levels, renamed = {}, {}

    def add_noise(name, array, sums):
        if array.dtype.name not in NOISE or not array.size or name in exact:
            return
        with np.errstate(all="ignore"):
            size = np.nan_to_num(np.abs(array.astype(np.float64)), nan=0.0, posinf=0.0, neginf=0.0)
        levels[f"{name}.noise"] = (NOISE[array.dtype.name] * (size + SUM_NOISE * size.max() * sums), array.dtype)
        renamed[name] = f"{name}.noisy"
        noisy.graph.node.append(helper.make_node("Add", [name, f"{name}.noise"], [f"{name}.noisy"]))

    for name, array in [*inputs.items(), *((i.name, numpy_helper.to_array(i)) for i in model.graph.initializer)]:
        add_noise(name, array, sums=False)
    for node in model.graph.node:
        copy = noisy.graph.node.add()
        copy.CopyFrom(node)
        for i, name in enumerate(copy.input):
            copy.input[i] = renamed.get(name, name)
        for name in node.output:
            if name in values and name not in outputs:
                add_noise(name, values[name], node.op_type in SUMS)
    noisy.graph.input.extend(value_info(n, np.empty(level.shape, dtype)) for n, (level, dtype) in levels.items())
    return _Noisy(noisy, levels)


def noisy_answers(model, inputs, seed=0):
    """Answers of ONNX Runtime with noise on each float input and initialiser, and on each result of a node but outputs.

    Noise on results stands for the rounding of each step. Runs that fail are left out.
    """
    try:
        values = all_values(model, inputs)
    except Refused:
        return []
    noisy = _with_noise(model, inputs, values)
    answers = []
    for run in range(NOISY_RUNS):
        rng = np.random.default_rng([seed, run])
        feed = dict(inputs)
        for name, (level, dtype) in noisy.levels.items():
            feed[name] = np.asarray(level * rng.uniform(-1.5, 1.5, level.shape), dtype)
        try:
            answers.append(onnxruntime_answer(noisy.model, feed))
        except Refused:
            continue
    return answers
