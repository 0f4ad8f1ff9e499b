"""Subgraphs."""

from onnx.reference.ops.op_loop import Loop as OnnxLoop


class Loop(OnnxLoop):
    """What iterations make is stacked along a new dimension; the evaluator joins it along the first one."""

    def __init__(self, onnx_node, run_params):
        super().__init__(onnx_node, run_params)
        run_body = self._run_body
        self.pieces = []

        def run_and_note_shapes(*args, **more):
            outputs = run_body(*args, **more)
            self.pieces.append([outputs[k].shape for k in range(len(outputs) - self.K, len(outputs))])
            return outputs

        self._run_body = run_and_note_shapes

    def _run(self, *args, **more):
        self.pieces = []
        results = list(super()._run(*args, **more))
        if self.pieces:
            for k, shape in enumerate(self.pieces[0]):
                results[self.N + k] = results[self.N + k].reshape(len(self.pieces), *shape)
        return tuple(results)
