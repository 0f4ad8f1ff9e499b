"""Which sentences say the same: a BERT of transformers through `torch.compile`, with MiniLM's learnt weights.

    python sentences_torch.py minilm/model.onnx cases/minilm.npz      # as of sentences.py; needs torch, transformers and onnx
"""

import sys

import numpy as np
import onnx
import torch
from torch.nn.functional import normalize
from transformers import BertConfig, BertModel


def learnt_weights(path: str) -> dict[str, torch.Tensor]:
    """The weights in an ONNX file by their names in PyTorch. Those of linear layers lie transposed there, beside their biases."""
    graph = onnx.load(path).graph
    stored = {tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    products = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul" and node.input[1] in stored}
    weights = {name: tensor for name, tensor in stored.items() if name.endswith((".weight", ".bias"))}
    for node in graph.node:
        if node.op_type == "Add" and node.input[0] in products:
            weights[node.input[1].removesuffix("bias") + "weight"] = stored[products[node.input[0]]].T
    return {name.removeprefix("inner."): tensor for name, tensor in weights.items()}


class Embedder(torch.nn.Module):
    """The mean of the states of a sentence's tokens, of length one."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).float()
        return normalize((states * weight).sum(1) / weight.sum(1), dim=1)


model, cases = sys.argv[1:]
config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
bert = BertModel(config, add_pooling_layer=False)
bert.load_state_dict(learnt_weights(model))
data = np.load(cases)
ids, mask = torch.from_numpy(data["input_ids"]), torch.from_numpy(data["attention_mask"])

eager = Embedder(bert).eval()
embed = torch.compile(eager, backend="orchestrion", options={"strict": True})
with torch.no_grad():
    unit = embed(ids, mask)
    torch.testing.assert_close(unit, eager(ids, mask))
similarity = unit @ unit.T - 2 * torch.eye(len(unit))
for number, nearest in enumerate(similarity.argmax(1)):
    print(f"{similarity[number, nearest]:.2f}  {data['sentence'][number]}  ~  {data['sentence'][nearest]}")
