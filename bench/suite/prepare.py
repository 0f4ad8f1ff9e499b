#!/usr/bin/env python3
"""Makes of a row of the suite a folder: the model as ONNX, inputs, and what it should compute.

    prepare.py MODEL@BATCH,SIZE,EXPORTER FOLDER [--no-reference]

The folder gets `model.onnx`, `test_data_set_0/input_N.pb`, `reference_N.npy` (the model in torch, in f64) and `peer_N.npy` (ONNX
Runtime). What could be made is printed as one JSON object: `exporter`, `parameters`, `inputs`, `outputs`, and messages by stage in
`problems`. If the row's exporter fails, the other one is tried.
"""
from __future__ import annotations

import argparse
import copy
import json
import logging
import pathlib
import re
import sys
import warnings

import numpy as np
import torch

import draw
import elsewhere
import models

zoo = elsewhere.load("bench", "zoo")

OPSETS = {"script": 17, "dynamo": 18}


def message(error: Exception) -> str:
    # Without what colours terminals.
    lines = [line for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def export(built: models.Built, exporters: list[str], path: pathlib.Path, problems: dict[str, str]) -> str | None:
    """The exporter that wrote the model."""
    for exporter in exporters:
        dynamo = exporter == "dynamo"
        further = {"external_data": True} if dynamo else {}
        try:
            with torch.no_grad():
                torch.onnx.export(built.model, tuple(built.inputs.values()), path, dynamo=dynamo, input_names=list(built.inputs),
                                  opset_version=OPSETS[exporter], **further)
        except Exception as error:  # noqa: BLE001 - exporters raise anything
            problems[f"export by {exporter}"] = message(error)
        else:
            return exporter
    return None


def reference(built: models.Built, folder: pathlib.Path) -> None:
    """Stores what torch computes in f64."""
    model = copy.deepcopy(built.model).double()
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in built.inputs.values()]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            outputs = model(*wide)
    finally:
        torch.set_default_dtype(torch.float32)
    for number, output in enumerate(outputs):
        np.save(folder / f"reference_{number}.npy", output.numpy())


def peer(folder: pathlib.Path) -> None:
    """Stores what ONNX Runtime computes."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    fed = dict(zip((port.name for port in session.get_inputs()), zoo.inputs(folder)))
    for number, output in enumerate(session.run(None, fed)):
        np.save(folder / f"peer_{number}.npy", output)


def taken(folder: pathlib.Path, inputs: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """The inputs that the exported model has: exporters drop those that nothing reads."""
    import onnx

    names = [port.name for port in onnx.load(folder / "model.onnx", load_external_data=False).graph.input]
    return [inputs[name].numpy() for name in names]


def prepare(row: draw.Row, folder: pathlib.Path, judged: bool) -> dict:
    problems: dict[str, str] = {}
    facts = {"exporter": None, "problems": problems}
    try:
        built = models.build(row.model, row.batch, draw.SIZES[row.size])
    except Exception as error:  # noqa: BLE001
        problems["build"] = message(error)
        return facts
    facts["parameters"] = sum(parameter.numel() for parameter in built.model.parameters())
    facts["inputs"] = {name: list(tensor.shape) for name, tensor in built.inputs.items()}
    order = [row.exporter, *(exporter for exporter in draw.EXPORTERS if exporter != row.exporter)]
    facts["exporter"] = export(built, order, folder / "model.onnx", problems)
    if facts["exporter"] is None:
        return facts
    zoo.write_inputs(folder, taken(folder, built.inputs))
    if judged:
        for name, stage in (("f64", lambda: reference(built, folder)), ("ONNX Runtime", lambda: peer(folder))):
            try:
                stage()
            except Exception as error:  # noqa: BLE001
                problems[name] = message(error)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--no-reference", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    # Exporters print on standard output.
    printed, sys.stdout = sys.stdout, sys.stderr
    facts = prepare(draw.row(args.row, 0), args.folder, not args.no_reference)
    print(json.dumps(facts), file=printed)


if __name__ == "__main__":
    main()
