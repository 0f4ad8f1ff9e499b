"""Trains a classifier of handwritten digits (scikit-learn's, 8 x 8 pixels) through `torch.compile`, and one beside it in eager PyTorch.

    python digits.py                  # needs torch and scikit-learn
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

EPOCHS, BATCH, TEST_IMAGES = 8, 64, 360

torch.manual_seed(0)
digits = load_digits()
# The images of each writer lie side by side.
shuffled = torch.randperm(len(digits.target))
images = torch.from_numpy(digits.images).float().unsqueeze(1)[shuffled] / 16  # [1797, 1, 8, 8]
labels = torch.from_numpy(digits.target)[shuffled]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        order = torch.randperm(len(images) - TEST_IMAGES, generator=generator)
        for batch in order.split(BATCH)[:-1]:  # The last one is smaller.
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def correct(model: nn.Module) -> int:
    model.eval()
    with torch.no_grad():
        answers = model(images[-TEST_IMAGES:]).argmax(1)
    return int((answers == labels[-TEST_IMAGES:]).sum())


eager = network()
fast = torch.compile(copy.deepcopy(eager), backend="orchestrion", dynamic=False, options={"strict": True})
for name, model in [("orchestrion", fast), ("eager", eager)]:
    train(model)
    print(f"{name}: {correct(model)} of {TEST_IMAGES} images")
