"""What `cpu.py` and `gpu.py` share: the models that are asked for, and a row of figures of each."""

import argparse
import json
import pathlib
import sys
import time
import traceback

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))
import draw  # noqa: E402
import models  # noqa: E402


def parser(description, of_nothing, dtype):
    """Options of both; `of_nothing` are the models where none is named, `dtype` the type where none is."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("models", nargs="*", default=of_nothing, metavar="MODEL")
    made.add_argument("--sample", metavar="SEED,EACH", help="models that a seed draws, EACH of every stratum, in place of MODEL")
    made.add_argument("--train", action="store_true")
    made.add_argument("--dtype", default=dtype)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--limit-s", type=float, default=1e9, help="no row begins later")
    made.add_argument("--json", type=pathlib.Path)
    return made


def model_of(spec):
    """A model with random weights, and its inputs in order, of `NAME[@BATCH]`."""
    name, _, batch = spec.partition("@")
    if name in ("bert-base", "gpt2"):
        import transformers

        torch.manual_seed(0)
        config = transformers.BertConfig() if name == "bert-base" else transformers.GPT2Config(use_cache=False)
        return transformers.AutoModel.from_config(config), [torch.randint(0, 30_000, (int(batch or 1), 128))]
    built = models.build(name, int(batch or 1), 0)
    return built.model, list(built.inputs.values())


def cast(model, inputs, dtype):
    """A model and its inputs whose numbers of floating point have this type."""
    dtype = getattr(torch, dtype)
    return model.to(dtype), [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]


def first(output):
    """The first tensor of an output."""
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output


def error(output, reference):
    """The largest difference, relative to the largest magnitude."""
    return float(f"{((first(output).double() - reference).abs().max() / reference.abs().max()).item():.1e}")


def made(row, names, make):
    """Those of the modes that `make` could make; of the others the row says why."""
    modes = []
    for name in names:
        try:
            modes.append(make(name))
        except Exception:  # noqa: BLE001 - a row of the others remains
            row[f"{name}_failed"] = traceback.format_exc()[-600:]
    return modes


def measure(options, row_of):
    """A row of each model, printed and written as it is known."""
    specs = options.models
    if options.sample:
        seed, each = map(int, options.sample.split(","))
        specs = [f"{row.model}@{row.batch}" for row in draw.stratified(seed, each, batch=1)]
    rows, begin = [], time.time()
    for spec in specs:
        if time.time() - begin > options.limit_s:
            print("not started:", spec)
            continue
        row = {"model": spec}
        try:
            row_of(row, options)
        except Exception:  # noqa: BLE001 - other rows remain
            row["failed"] = traceback.format_exc()[-800:]
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    return rows
