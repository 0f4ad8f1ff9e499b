"""Which sentences say the same: MiniLM with its learnt weights.

    python sentences.py minilm/model.onnx cases/minilm.npz      # `scripts/zoo.sh minilm` makes the first; the second lies beside it
"""

import sys

import numpy as np

import orchestrion as orc

model, cases = sys.argv[1:]
data = np.load(cases)
embed = orc.compile(model)
vectors = [embed(ids[None], mask[None])[0] for ids, mask in zip(data["input_ids"], data["attention_mask"])]
unit = np.array([vector / np.linalg.norm(vector) for vector in vectors])
similarity = unit @ unit.T - 2 * np.eye(len(unit))
for number, nearest in enumerate(similarity.argmax(axis=1)):
    print(f"{similarity[number, nearest]:.2f}  {data['sentence'][number]}  ~  {data['sentence'][nearest]}")
