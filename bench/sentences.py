#!/usr/bin/env python3
"""Embeds the sentences that come with `minilm` (its learnt weights) and compares with what ONNX Runtime makes of them.

    sentences.py [--orchestrion PROGRAM]

Every cosine similarity of two sentences must agree to 1e-4, and each sentence's nearest neighbour must be its
paraphrase: sentences 2 i and 2 i + 1 say the same.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import zoo

SENTENCES = 16
TOLERANCE = 1e-4


def embeddings(program, folder, scratch):
    """The embeddings that the compiled model gives, and the stored ones of ONNX Runtime."""
    artifact = scratch / "minilm.orc"
    subprocess.run([program, "compile", folder / "model.onnx", "-o", artifact, "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    got, want = [], []
    for number in range(1, SENTENCES + 1):
        data = folder / f"test_data_set_{number}"
        subprocess.run([program, "run", artifact, "--input-dir", data, "--output-dir", scratch], check=True,
                       stdout=subprocess.DEVNULL)
        got.append(np.load(scratch / "output.npy")[0])
        want.append(zoo.tensor(data / "output_0.pb")[0])
    return np.array(got), np.array(want)


def cosines(vectors):
    """The cosine similarity of every two rows, in f64."""
    vectors = vectors.astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def check(program, folder):
    """Largest difference of similarities, how many sentences have their paraphrase nearest, and whether that will do."""
    with tempfile.TemporaryDirectory() as scratch:
        got, want = map(cosines, embeddings(program, folder, pathlib.Path(scratch)))
    difference = float(np.abs(got - want).max())
    nearest = (got - 2 * np.eye(SENTENCES)).argmax(1)
    paired = int((nearest == np.arange(SENTENCES) ^ 1).sum())
    return {"largest_difference": difference, "paired": paired,
            "pass": difference <= TOLERANCE and paired == SENTENCES}


def sentence(found):
    """What `check` found, in words."""
    return f"cosine similarities of {SENTENCES} sentences differ from ONNX Runtime's by at most " \
           f"{found['largest_difference']:.1e}; {found['paired']} have their paraphrase as nearest neighbour"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--orchestrion", type=pathlib.Path, metavar="PROGRAM", help="default: a release build of this tree")
    args = args.parse_args()
    [folder] = zoo.folders(["minilm"])
    found = check(args.orchestrion or zoo.build(), folder)
    print(sentence(found))
    sys.exit(0 if found["pass"] else "that is not as it should be")


if __name__ == "__main__":
    main()
