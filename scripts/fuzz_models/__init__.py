"""Random ONNX graphs against ONNX Runtime, with onnx's reference evaluator as arbiter.

In processing order:

- `graph`: a graph under construction, whose every value is known as an array
- `operators`: one recipe for each operator, which finds fitting inputs and adds a node
- `draw`: a whole graph from a seed and a number
- `oracle`: what ONNX Runtime and the reference evaluator answer, and how far noise moves the answer
- `formulas`: operators that the reference evaluator lacks or gets wrong
- `arbiter`: the reference's answer, node by node
- `parts`: parts of models
- `compare`: whether two answers are equal, by type
- `program`: the Orchestrion binary
- `judge`: one verdict for one graph
- `minimise`: a smaller graph with the same verdict
- `kept`: folders of cases
- `mutate`: damaged models
- `cli`: the commands of `scripts/fuzz-models.py`
"""
