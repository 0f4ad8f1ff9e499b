#!/usr/bin/env python3
"""Random ONNX graphs, compiled and run by Orchestrion, against ONNX Runtime; onnx's reference evaluator decides.

    fuzz-models.py [run] [--graphs N] [--seed S] [--first K] [--target T] [--orchestrion BIN] [--out DIR] [--jobs J]
    fuzz-models.py mutate [--models N] [--seed S] ..     damaged models
    fuzz-models.py show INDEX [--seed S] ..              one graph as text, and its verdict
    fuzz-models.py keep DIR NAME                         a failing case, into fuzz/models/NAME
    fuzz-models.py replay [DIR]                          all kept cases

Needs numpy, onnx and onnxruntime (scripts/python-env.sh). fuzz/README.md says what the verdicts mean.
"""

from fuzz_models import cli

cli.main()
