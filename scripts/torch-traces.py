#!/usr/bin/env python3
"""Writes the traces of `crates/orch-aten/tests/traces`: whole models as documents of ATen calls, what is not supported included.

    torch-traces.py [--only NAME ...]

The workloads of the PyGraph paper (those that no library has as stand-ins with the same calls), and the models of the papers of Hidet and Korch.
Documents hold no weights. Transformers have two narrow layers, images 64 pixels (Inception-v3 75). Trained models give a forward and
a backward graph; where Dynamo breaks a model, each graph is a document. `ORCH_BLESS=1 cargo test -p orch-aten` then writes the
expected coverage anew.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch  # noqa: E402
from orchestrion.torch import _backend, _document  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch_models import catalog, standins  # noqa: E402
from torch_models.catalog import Built  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates/orch-aten/tests/traces"


def detector():
    """The parts of Mask R-CNN between its operators of boxes, which are none of ATen: backbone, region proposals, masks."""
    import torchvision

    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)

    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.rpn, self.heads = model.backbone, model.rpn.head, model.roi_heads

        def forward(self, image, regions, mask_regions):
            features = list(self.backbone(image).values())
            classes, boxes = self.heads.box_predictor(self.heads.box_head(regions))
            masks = self.heads.mask_predictor(self.heads.mask_head(mask_regions))
            return self.rpn(features), classes.softmax(-1), boxes, masks.sigmoid()

    return Built(Parts(), (torch.randn(1, 3, 64, 64), torch.randn(3, 256, 7, 7), torch.randn(2, 256, 14, 14)))


def known(name):
    return lambda: catalog.build(name, dropout=True)


#: What is traced: the model, and whether it is trained.
TRACES = {
    "eos": (standins.eos, False),
    "speech-transformer": (standins.speech, False),
    "dalle2": (standins.diffusion, False),
    "clip": (known("transformers/clip"), False),
    "tke": (standins.tke, False),
    "deeprecommender-train": (standins.recommender, True),
    "deeprecommender": (standins.recommender, False),
    "mask-rcnn": (detector, False),
    "learning-to-paint-train": (known("torchvision/resnet18"), True),
    "alexnet": (known("torchvision/alexnet"), False),
    "dlrm": (standins.dlrm, False),
    "xlnet": (known("transformers/xlnet"), False),
    "xlnet-train": (known("transformers/xlnet"), True),
    "electra-train": (known("transformers/electra"), True),
    "camembert-train": (known("transformers/camembert"), True),
    "distilgpt2-train": (known("transformers/gpt2"), True),
    "deberta-train": (known("transformers/deberta"), True),
    "fnet-train": (known("transformers/fnet"), True),
    "distilbert-train": (known("transformers/distilbert"), True),
    "lcnet": (known("timm/lcnet_050"), False),
    "resnet50": (known("torchvision/resnet50"), False),
    "resnet50-train": (known("torchvision/resnet50"), True),
    "inception-v3": (known("torchvision/inception_v3"), False),
    "mobilenet-v2": (known("torchvision/mobilenet_v2"), False),
    "bert": (known("transformers/bert"), False),
    "gpt2": (known("transformers/gpt2"), False),
    "segformer": (known("transformers/segformer"), False),
    "efficientvit": (known("timm/efficientvit_b0"), False),
}


def trace(name, build, train):
    """The documents of a model by name."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    built = build()
    found = {}

    def keeping(kind):
        def compile_graph(gm, example_inputs):
            number = sum(key.startswith(f"{name}.{kind}") for key in found)
            found[f"{name}.{kind}{number or ''}"] = documented(gm, name)
            return _backend._boxed(_backend._eager(gm))

        return compile_graph

    backend = aot_autograd(fw_compiler=keeping("forward"), bw_compiler=keeping("backward"), inference_compiler=keeping("inference"),
                           decompositions=_backend.decompositions(), keep_inference_input_mutations=True)
    built.model.train(train)
    with torch.set_grad_enabled(train):
        outputs = built.call(torch.compile(built.model, backend=backend))
    if train:
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        sum(leaf.sum() for leaf in leaves).backward()
    return found


def documented(gm, name):
    with unset_fake_temporarily():
        document = _document.document(gm, name=name)
    for node in document["nodes"]:
        node["where"] = ""
    return document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TRACES, default=list(TRACES), metavar="NAME")
    args = parser.parse_args()
    # Transforms of Fourier have complex results: no element type of documents, but of a trace that says what is not supported.
    _document.DTYPES[torch.complex64] = "c64"
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (build, train) in TRACES.items():
        if name not in args.only:
            continue
        for stale in FOLDER.glob(f"{name}.*.json"):
            stale.unlink()
        for key, document in trace(name, build, train).items():
            text = json.dumps(document, separators=(",", ":"))
            (FOLDER / f"{key}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{key:40} {len(document['nodes']):5} calls {len(text):8} bytes", flush=True)


if __name__ == "__main__":
    main()
