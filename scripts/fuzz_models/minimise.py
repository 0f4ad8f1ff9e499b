"""A smaller graph with the same verdict.

Steps, each kept if the verdict stays: one output; only the last nodes before it, by depth; single values as inputs;
smaller dimensions. What is cut away is replaced by an input that has the value which ONNX Runtime computes, or else
the reference.
"""

import time

import numpy as np
import onnx
from onnx import numpy_helper

from . import oracle
from .graph import FLOATS, INTS, SMALL_INTS, names_read
from .judge import judge
from .parts import constant_names, restricted

INPUT_TYPES = FLOATS + INTS + SMALL_INTS + ("bool",)


class Minimiser:
    """A failing graph, and the smallest one so far."""

    def __init__(self, program, model, inputs, judgement, time_limit):
        self.program = program
        self.model, self.inputs, self.judgement = model, inputs, judgement
        self.deadline = time.monotonic() + time_limit
        self.runs = 0

    def minimised(self):
        """The smallest model found, its inputs, and its judgement."""
        self._one_output()
        self._last_nodes()
        self._earlier_output()
        self._cut_values()
        self._inputs_of_constants()
        self._smaller_dimensions()
        return self.model, self.inputs, self.judgement

    def _try(self, model, inputs):
        """Takes a candidate over if the verdict stays."""
        if time.monotonic() > self.deadline:
            return False
        self.runs += 1
        try:
            judgement = judge(self.program, model, inputs)
        except Exception:  # a candidate may be no model at all
            return False
        if judgement.signature() != self.judgement.signature():
            return False
        self.model, self.inputs, self.judgement = model, inputs, judgement
        return True

    def _one_output(self):
        outputs = [o.name for o in self.model.graph.output]
        if len(outputs) > 1:
            suspects = [outputs[i] for i in self.judgement.outputs] or outputs
            any(self._try(*restricted(self.model, self.inputs, [name], {})) for name in suspects)

    def _values(self):
        try:
            values = oracle.all_values(self.model, self.inputs)
        except oracle.Refused:
            try:
                values = _reference_values(self.model, self.inputs)
            except oracle.Refused:
                return {}
        return {n: a for n, a in values.items() if isinstance(a, np.ndarray) and a.dtype.name in INPUT_TYPES}

    def _last_nodes(self):
        """Cuts all values at one distance from an output; the smallest distance that does."""
        values = self._values()
        constants = constant_names(self.model)
        producers = {name: node for node in self.model.graph.node for name in node.output}
        reached = {o.name for o in self.model.graph.output}
        for _ in range(len(self.model.graph.node)):
            nodes = [producers[n] for n in reached if n in producers]
            front = {name for node in nodes for name in names_read(node)} - constants
            cuts = {n: values[n] for n in front if n in values and n in producers and n not in reached}
            if not cuts:
                return
            outputs = [o.name for o in self.model.graph.output]
            if self._try(*restricted(self.model, self.inputs, outputs, cuts)):
                return
            reached |= front

    def _earlier_output(self):
        """The first value that is off by itself."""
        values, outputs = self._values(), {o.name for o in self.model.graph.output}
        for node in self.model.graph.node:
            for name in node.output:
                if name in values and name not in outputs and node.op_type != "Constant":
                    if self._try(*restricted(self.model, self.inputs, [name], {}, {name: values[name]})):
                        return

    def _cut_values(self):
        """Cuts single values, the last ones first, as long as something can be cut."""
        progress = True
        while progress and time.monotonic() < self.deadline:
            progress = False
            values, constants = self._values(), constant_names(self.model)
            outputs = [o.name for o in self.model.graph.output]
            read = {name for node in self.model.graph.node for name in names_read(node)}
            for node in reversed(self.model.graph.node):
                cuts = {
                    n: values[n]
                    for n in node.output
                    if n in values and n in read and n not in outputs and n not in constants
                }
                if cuts and self._try(*restricted(self.model, self.inputs, outputs, cuts)):
                    progress = True
                    break

    def _inputs_of_constants(self):
        """Nothing but inputs, where constants do not matter: a plainer case."""
        floats = {
            i.name: numpy_helper.to_array(i)
            for i in self.model.graph.initializer
            if numpy_helper.to_array(i).dtype.name in FLOATS
        }
        for name, array in floats.items():
            model = onnx.ModelProto()
            model.CopyFrom(self.model)
            kept = [i for i in model.graph.initializer if i.name != name]
            del model.graph.initializer[:]
            model.graph.initializer.extend(kept)
            model.graph.input.append(oracle.value_info(name, array))
            self._try(model, {**self.inputs, name: array})

    def _smaller_dimensions(self):
        """All dimensions of one size become smaller, where no constant of the graph says otherwise."""
        for size in sorted({d for a in self.inputs.values() for d in a.shape if d > 1}, reverse=True):
            for smaller in (1, 2, size // 2):
                if 0 < smaller < size and self._resized(size, smaller):
                    break

    def _resized(self, size, smaller):
        def cut(array):
            return np.ascontiguousarray(array[tuple(slice(smaller) if d == size else slice(None) for d in array.shape)])

        inputs = {name: cut(array) for name, array in self.inputs.items()}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for info in model.graph.input:
            info.CopyFrom(oracle.value_info(info.name, inputs[info.name]))
        for initializer in model.graph.initializer:
            array = numpy_helper.to_array(initializer)
            if array.dtype.name in FLOATS:
                initializer.CopyFrom(numpy_helper.from_array(cut(array), initializer.name))
        try:
            answer = oracle.onnxruntime_answer(_untyped(model), inputs)
        except oracle.Refused:
            return False
        names = [o.name for o in model.graph.output]
        del model.graph.output[:]
        model.graph.output.extend(oracle.value_info(n, a) for n, a in zip(names, answer))
        return self._try(model, inputs)


def _untyped(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = [o.name for o in copy.graph.output]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return copy


def _reference_values(model, inputs):
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    names = [n for node in model.graph.node for n in node.output if n]
    del wide.graph.output[:]
    wide.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return dict(zip(names, oracle.reference_answer(wide, inputs)))
