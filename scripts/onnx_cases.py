#!/usr/bin/env python3
"""Writes the ONNX backend test cases of one `onnx` release as folders that `orchestrion conformance` reads.

    onnx_cases.py OUT

writes OUT/{node,simple,pytorch-converted,pytorch-operator}/CASE/{model.onnx,test_data_set_*/}. Run it with the
interpreter of an environment that has the release installed (`scripts/onnx-cases.sh` makes one). Releases up to
1.18 ship the node cases as files; later ones generate them in memory, and this script writes those out.
"""
import json
import pathlib
import shutil
import sys

import onnx
from onnx import TensorProto, numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
RTOL, ATOL = 1e-3, 1e-7


def put(path, value, kind, name):
    """Writes one input or output in the encoding its type asks for."""
    if isinstance(value, TensorProto):
        proto = value
    elif kind == "map_type":
        proto = numpy_helper.from_dict(value, name)
    elif kind == "sequence_type":
        proto = numpy_helper.from_list(value, name)
    elif kind == "optional_type":
        proto = numpy_helper.from_optional(value, name)
    else:
        proto = numpy_helper.from_array(value, name)
    path.write_bytes(proto.SerializeToString())


def write(case, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    if (case.rtol, case.atol) != (RTOL, ATOL):
        (folder / "data.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{number}"
        data.mkdir(exist_ok=True)
        for word, values, infos in (("input", inputs, case.model.graph.input),
                                    ("output", outputs, case.model.graph.output)):
            for index, (value, info) in enumerate(zip(values, infos)):
                put(data / f"{word}_{index}.pb", value, info.type.WhichOneof("value"), info.name)


def main():
    out = pathlib.Path(sys.argv[1])
    data = pathlib.Path(onnx.__file__).parent / "backend/test/data"
    for kind in KINDS:
        if (data / kind).is_dir():
            shutil.copytree(data / kind, out / kind, dirs_exist_ok=True)
    if not (out / "node").is_dir():
        from onnx.backend.test.case.node import collect_testcases
        for case in collect_testcases(None):
            write(case, out / "node" / case.name)
    for kind in KINDS:
        print(f"{kind}: {len(list((out / kind).iterdir()))} cases")


main()
