"""Where the models, their inputs and the programs are that the benchmarks use."""
import os
import pathlib
import subprocess

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = pathlib.Path(__file__).resolve().parent.parent


def build():
    """Builds the `orchestrion` command and returns its path."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "orchestrion-cli"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/orchestrion"


def folders(names):
    """Folders of the models `names` (all if empty), filled by scripts/zoo.sh: model.onnx and test_data_set_0."""
    command = [ROOT / "scripts/zoo.sh", *names]
    zoo = pathlib.Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    names = names or sorted(path.parent.name for path in zoo.glob("*/.complete"))
    return [zoo / name for name in names]


def tensor(path):
    """The array in a `.pb` file, writable: some engines insist on that."""
    proto = onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    return np.array(numpy_helper.to_array(proto), order="C")


def inputs(folder, data_set=0):
    """The arrays of a data set, in the model's order."""
    data = folder / f"test_data_set_{data_set}"
    count = len(list(data.glob("input_*.pb")))
    return [tensor(data / f"input_{number}.pb") for number in range(count)]
