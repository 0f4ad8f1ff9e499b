"""What ONNX Runtime and onnx's reference evaluator answer, and how far noise moves the answer."""
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

IR_VERSION = 10
# Relative noise by type: about 8 units in the last place, 1e-6 for f32.
NOISE = {"float16": 8e-3, "float32": 1e-6, "float64": 2e-15}
NOISY_RUNS = 6

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
        session = onnxruntime.InferenceSession(model.SerializeToString(), _options(), providers=["CPUExecutionProvider"])
        return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
    except Exception as error:  # pybind's exceptions have no common base
        raise Refused(str(error)) from None


def reference_answer(model, inputs):
    """The outputs by onnx's reference evaluator."""
    from onnx.reference import ReferenceEvaluator
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            names = {i.name for i in model.graph.input}
            answer = ReferenceEvaluator(model).run(None, {n: a for n, a in inputs.items() if n in names})
            return [np.asarray(array) for array in answer]
    except Exception as error:  # the evaluator raises whatever numpy raises
        raise Refused(f"{type(error).__name__}: {error}") from None


def value_info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def small_model(nodes, arrays, constants, outputs, opset):
    """A model of a few nodes whose inputs are `arrays` and whose initialisers are `constants`, both name -> array."""
    graph = helper.make_graph(
        nodes, "graph", [value_info(n, a) for n, a in arrays.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs], [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def all_values(model, inputs):
    """Name -> array of every value that the nodes of the main graph compute, tensors only."""
    sequences = {"SequenceConstruct", "SplitToSequence", "SequenceInsert", "SequenceErase", "SequenceEmpty"}
    names = [name for node in model.graph.node if node.op_type not in sequences for name in node.output if name]
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, onnxruntime_answer(wide, inputs)))


# Inputs that decide a shape or a count: noise on them asks another question.
EXACT_INPUTS = {"Resize": (1, 2, 3), "Range": (0, 1, 2), "OneHot": (1,)}


def noisy_answers(model, inputs, seed=0):
    """Answers of ONNX Runtime where each float input, initialiser and result of a node is multiplied by 1 + noise.

    Noise on results stands for the rounding of each step. Runs that fail or have other shapes are left out.
    """
    try:
        values = all_values(model, inputs)
    except Refused:
        return []
    exact = {node.input[i] for node in model.graph.node for i in EXACT_INPUTS.get(node.op_type, ()) if i < len(node.input)}
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    del noisy.graph.node[:]
    factors = {}
    sources = [(i.name, inputs[i.name]) for i in model.graph.input]
    sources += [(i.name, numpy_helper.to_array(i)) for i in model.graph.initializer]
    renamed = {}

    def add_noise(name, array):
        if array.dtype.name in NOISE and array.size and name not in exact:
            factors[f"{name}.noise"] = array
            renamed[name] = f"{name}.noisy"
            noisy.graph.node.append(helper.make_node("Mul", [name, f"{name}.noise"], [f"{name}.noisy"]))

    for name, array in sources:
        add_noise(name, array)
    outputs = [o.name for o in model.graph.output]
    for node in model.graph.node:
        copy = noisy.graph.node.add()
        copy.CopyFrom(node)
        for i, name in enumerate(copy.input):
            copy.input[i] = renamed.get(name, name)
        for name in node.output:
            if name in values and name not in outputs:
                add_noise(name, values[name])
    noisy.graph.input.extend(value_info(n, a) for n, a in factors.items())
    answers = []
    for run in range(NOISY_RUNS):
        rng = np.random.default_rng([seed, run])
        feed = dict(inputs)
        for name, array in factors.items():
            level = NOISE[array.dtype.name]
            feed[name] = (1 + level * rng.choice([-1.0, 1.0], array.shape)).astype(array.dtype)
        try:
            answers.append(onnxruntime_answer(noisy, feed))
        except Refused:
            continue
    return answers
