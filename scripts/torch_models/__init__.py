"""Models of torchvision, timm and transformers with random weights, and how their compiled results are compared."""
