"""Which models there are, and how each is built: random weights by a seed, small inputs, nothing downloaded."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

#: Models that are always run.
FIXED = [
    "torchvision/alexnet",
    "torchvision/resnet18",
    "torchvision/mobilenet_v2",
    "torchvision/mobilenet_v3_small",
    "torchvision/squeezenet1_1",
    "torchvision/shufflenet_v2_x0_5",
    "torchvision/lraspp_mobilenet_v3_large",
    "timm/lcnet_050",
    "timm/vit_tiny_patch16_224",
    "timm/convnext_atto",
    "timm/mixer_s32_224",
    "timm/efficientvit_b0",
    "timm/mobilevit_xxs",
    "timm/resnetv2_18",
    "transformers/bert",
    "transformers/gpt2",
    "transformers/distilbert",
    "transformers/electra",
    "transformers/camembert",
    "transformers/deberta",
    "transformers/t5",
    "transformers/xlnet",
    "transformers/llama",
    "transformers/clip",
    "transformers/segformer",
    "transformers/mobilebert",
]

#: Models that are trained.
TRAINED = [
    "torchvision/resnet18",
    "torchvision/squeezenet1_1",
    "timm/vit_tiny_patch16_224",
    "timm/convnext_atto",
    "timm/mixer_s32_224",
    "transformers/bert",
    "transformers/gpt2",
    "transformers/distilbert",
    "transformers/electra",
    "transformers/deberta",
]

#: Images are this large, where the model takes images of any size.
IMAGE = 64
#: Tokens of a text, and the batch.
TOKENS, BATCH = 16, 2

#: What the configurations of transformers say about size: two layers, and narrow.
SMALL: dict[str, Any] = {
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
                     "num_decoder_layers", "num_encoder_layers", "n_encoder_layers", "n_decoder_layers"], 2),
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim", "projection_dim",
                     "d_embed", "embed_dim", "true_hidden_size", "intra_bottleneck_size"], 64),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads"], 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(["intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "d_inner", "ffn_dim",
                     "hidden_dim", "n_inner", "moe_intermediate_size"], 128),
    **dict.fromkeys(["d_kv", "head_dim", "d_head"], 16),
    "vocab_size": 512,
    "image_size": IMAGE,
    **dict.fromkeys(["pad_token_id", "padding_idx"], 0),
    **dict.fromkeys(["bos_token_id", "decoder_start_token_id"], 1),
    "eos_token_id": 2,
    "use_cache": False,
}


class Skipped(Exception):
    """Why a model is not run."""


@dataclass
class Built:
    """A model and what it is called with."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)


def build(name: str, seed: int = 0, dropout: bool = False) -> Built:
    """A model by its name, as `timm/convnext_atto`. Raises `Skipped`, or whatever the library raises."""
    library, _, model = name.partition("/")
    torch.manual_seed(seed)
    built = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library](model)
    _check_size(built.model)
    perturb(built.model)
    if not dropout:
        _without_dropout(built.model)
    return built


def drawn(seed: int) -> Iterator[str]:
    """Names drawn by a seed from the lists of the libraries in turn, without the fixed ones."""
    import timm
    import torchvision
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    generator = random.Random(seed)
    lists = {
        "timm": timm.list_models(),
        "transformers": list(MODEL_MAPPING_NAMES),
        "torchvision": torchvision.models.list_models(),
    }
    names = [[f"{library}/{name}" for name in sorted(found) if f"{library}/{name}" not in FIXED]
             for library, found in lists.items()]
    for found in names:
        generator.shuffle(found)
    while any(names):
        yield from (found.pop() for found in names if found)


def _torchvision(name: str) -> Built:
    import torchvision

    if name.startswith("quantized_"):
        raise Skipped("quantized")
    if "rcnn" in name or name in ("fcos_resnet50_fpn", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2") or "ssd" in name:
        raise Skipped("a detector: lists of images")
    if "raft" in name:
        raise Skipped("takes pairs of images of 128 pixels and more")
    parameters = inspect.signature(torchvision.models.get_model_builder(name)).parameters
    options = {"weights_backbone": None} if "weights_backbone" in parameters else {}
    if "inception" in name or name == "googlenet":
        options = {"init_weights": True, "aux_logits": False}
    model = _sized(lambda: torchvision.models.get_model(name, weights=None, num_classes=10, **options))
    if hasattr(torchvision.models.video, name):
        size = 224 if "mvit" in name else IMAGE
        return Built(model, (torch.randn(1, 3, 16 if size == 224 else 4, size, size),))
    size = 224 if name.startswith("vit") or "maxvit" in name else 75 if "inception" in name else IMAGE
    return Built(model, (torch.randn(BATCH if size == IMAGE else 1, 3, size, size),))


def _timm(name: str) -> Built:
    import timm

    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    channels, size = (3, 224) if known is None else (known.input_size[0], known.input_size[-1])
    if size > 256:
        raise Skipped(f"images of {size} pixels")
    model = _sized(lambda: timm.create_model(name, pretrained=False, num_classes=10))
    smaller = size
    if known is not None and not known.fixed_input_size and known.pool_size and known.pool_size[0] <= 8:
        smaller = max(IMAGE, known.min_input_size[-1] if known.min_input_size else 0)
    for extent in (smaller, size):
        image = torch.randn(BATCH if extent == IMAGE else 1, channels, extent, extent)
        try:
            model.eval()(image)
        except Exception:  # noqa: BLE001 - takes no images of this size
            if extent == size:
                raise
        else:
            break
    return Built(model, (image,))


def reduced(kind: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """The arguments that give a configuration these sizes where it has them, parts included."""
    default = kind()
    chosen = {name: value for name, value in sizes.items()
              if name in kind.attribute_map or (getattr(default, name, None) is not None and not isinstance(getattr(default, name), (list, tuple)))
              or (name == "use_cache" and hasattr(default, name))}
    for part, part_kind in kind.sub_configs.items():
        if hasattr(part_kind, "sub_configs") and part_kind.__name__ != "AutoConfig":
            chosen[part] = reduced(part_kind, sizes)
    return chosen


def _transformers(name: str) -> Built:
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    config = kind(**reduced(kind, SMALL))
    model = _sized(lambda: AutoModel.from_config(config))
    parameters = inspect.signature(model.forward).parameters
    if name in ("bark", "seamless_m4t", "seamless_m4t_v2"):
        raise Skipped("a pipeline of models")
    kwargs: dict[str, Any] = {}
    text = getattr(config, "text_config", config)
    if "input_ids" in parameters:
        kwargs["input_ids"] = torch.randint(3, getattr(text, "vocab_size", 512), (BATCH, TOKENS))
    if "decoder_input_ids" in parameters and config.is_encoder_decoder:
        kwargs["decoder_input_ids"] = torch.randint(3, text.vocab_size, (BATCH, TOKENS // 2))
    if "pixel_values" in parameters and (model.main_input_name == "pixel_values" or hasattr(config, "projection_dim")):
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", IMAGE)
        extents = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        kwargs["pixel_values"] = torch.randn(1, getattr(vision, "num_channels", 3), *extents)
        if "input_ids" in kwargs:
            kwargs["pixel_values"] = kwargs["pixel_values"].expand(BATCH, -1, -1, -1).contiguous()
    if model.main_input_name == "input_values":
        kwargs["input_values"] = torch.randn(1, 4000)
    if model.main_input_name not in kwargs:
        raise Skipped(f"takes `{model.main_input_name}`")
    return Built(model, (), kwargs)


#: The most parameters, and modules without parts, of a model that is run.
MOST_PARAMETERS, MOST_LAYERS = 62_000_000, 350


def _sized(make: Callable[[], nn.Module]) -> nn.Module:
    """A model, without memory for its weights at first: it may be too large."""
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.device("meta"):
        _check_size(make())
    return make()


def _check_size(model: nn.Module) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > MOST_PARAMETERS:
        raise Skipped(f"{count / 1e6:.0f} million parameters")
    layers = sum(not any(module.children()) for module in model.modules())
    if layers > MOST_LAYERS:
        raise Skipped(f"{layers} layers")


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    """Makes parameters and statistics that are constants at first random: a factor of 0 or 1 would hide what it multiplies."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.numel() and parameter.min() == parameter.max():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)


def _without_dropout(model: nn.Module) -> None:
    """No random numbers when training: modules of dropout and of dropped paths, and rates that modules keep as numbers."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or name.endswith("_prob")):
                setattr(module, name, 0.0)
