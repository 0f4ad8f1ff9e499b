"""The models of the suite, by name, and how each is built: random weights by a fixed seed, nothing downloaded.

A name is `torchvision/NAME`, `timm/NAME` or `transformers/KIND`; `torchvision/NAME:backbone` is a part of a detector. Models
of transformers have the layers of their kind, but two of them, 256 wide.
"""
from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import elsewhere
import torch
from torch import nn

catalog = elsewhere.load("scripts", "torch_models.catalog")

#: Tokens of a text, samples of a sound, and frames of a spectrogram, in the usual and in the other size.
TOKENS, SAMPLES, FRAMES = (128, 75), (16000, 9100), (256, 180)

#: The sizes of models of transformers.
SIZES: dict[str, Any] = {
    **{name: {64: 256, 128: 1024, 16: 64}.get(size, size) for name, size in catalog.SMALL.items()},
    "vocab_size": 4096,
    **dict.fromkeys(["num_experts", "num_local_experts"], 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}
del SIZES["image_size"]

#: What configurations say beyond that, where the sizes above do not fit together. Nothing: what they say by themselves.
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["donut-swin", "swinv2"], dict.fromkeys(["num_attention_heads", "num_hidden_layers", "hidden_size", "embed_dim"])),
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "falcon": {"head_dim": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "layoutlmv3": {"coordinate_size": 44, "shape_size": 40},
    "mixtral": {"intermediate_size": 128},
    "owlvit": {"vision_config": {"image_size": 224}},
}


@dataclass
class Built:
    """A model whose inputs are tensors in this order, and whose output is a tuple of tensors."""

    model: nn.Module
    inputs: dict[str, torch.Tensor]


class Positional(nn.Module):
    """A model called with the tensors of named inputs, which gives the first tensors of its output."""

    #: How many outputs are kept.
    MOST = 3

    def __init__(self, model: nn.Module, names: list[str] | None):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        output = self.model(*inputs) if self.names is None else self.model(**dict(zip(self.names, inputs)))
        return tuple(_tensors(output)[: self.MOST])


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in an output of a model, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, (list, tuple)) or type(value).__name__ in ("odict_values", "dict_values"):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def build(name: str, batch: int, size: int) -> Built:
    """A model with inputs of a batch, in the usual size (0) or the other one (1), if it takes that."""
    library, _, model = name.partition("/")
    for attempt in [size, 0] if size else [0]:
        torch.manual_seed(0)
        try:
            built = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library](model, batch, attempt)
            catalog.perturb(built.model)
            built.model.eval()
            with torch.no_grad():
                built.model(*(tensor[:1] for tensor in built.inputs.values()))
        except Exception:  # noqa: BLE001 - takes no inputs of this size
            if attempt == 0:
                raise
        else:
            return built
    raise AssertionError("the usual size returns or raises")


def _image(batch: int, channels: int, extent: int) -> dict[str, torch.Tensor]:
    return {"image": torch.randn(batch, channels, extent, extent)}


def _other_extent(extent: int) -> int:
    """160 for 224, 192 for 256."""
    return extent * 3 // 4 // 32 * 32


def _torchvision(name: str, batch: int, size: int) -> Built:
    import torchvision

    name, _, part = name.partition(":")
    parameters = inspect.signature(torchvision.models.get_model_builder(name)).parameters
    options: dict[str, Any] = {"weights_backbone": None} if "weights_backbone" in parameters else {}
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": True, "aux_logits": True}
    model = torchvision.models.get_model(name, weights=None, **options)
    model = getattr(model, part) if part else model
    if hasattr(torchvision.models.video, name):
        extent, frames = (224, 16) if name in ("mvit_v2_s", "s3d") else ((112, 80)[size], 8)
        return Built(Positional(model, None), {"video": torch.randn(batch, 3, frames, extent, extent)})
    if "raft" in name:
        pair = {name: torch.randn(batch, 3, 128, (160, 128)[size]) for name in ("first", "second")}
        return Built(Positional(model, None), pair)
    extent = 299 if name == "inception_v3" else 256 if part or hasattr(torchvision.models.segmentation, name) else 224
    return Built(Positional(model, None), _image(batch, 3, _other_extent(extent) if size else extent))


def _timm(name: str, batch: int, size: int) -> Built:
    import timm

    usual = timm.get_pretrained_cfg(name, allow_unregistered=True)
    channels, extent = (3, 224) if usual is None else (usual.input_size[0], usual.input_size[-1])
    options = {}
    if size:
        extent = _other_extent(extent)
        options = {"img_size": extent} if usual is not None and usual.fixed_input_size else {}
    return Built(Positional(timm.create_model(name, pretrained=False, **options), None), _image(batch, channels, extent))


def _transformers(name: str, batch: int, size: int) -> Built:
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    config = kind(**_merged(catalog.reduced(kind, SIZES), SPECIAL.get(name, {})))
    # Mixtures of experts as products of all experts: the other ways depend on data, which no exporter takes.
    experts = {"experts_implementation": "batched_mm"} if getattr(config, "num_experts_per_tok", None) else {}
    model = AutoModel.from_config(config, **experts)
    inputs = _inputs(model, config, batch, size)
    return Built(Positional(model, list(inputs)), inputs)


def _merged(chosen: dict[str, Any], special: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a configuration with special ones, parts included."""
    parts = {name: _merged(chosen.get(name, {}), value) if isinstance(value, dict) else value for name, value in special.items()}
    return {name: value for name, value in {**chosen, **parts}.items() if value is not None}


def _inputs(model: nn.Module, config: Any, batch: int, size: int) -> dict[str, torch.Tensor]:
    """What a model of transformers is called with, by the names of its parameters."""
    parameters, main = inspect.signature(model.forward).parameters, model.main_input_name
    text = getattr(config, "text_config", config)
    tokens = lambda length: torch.randint(3, getattr(text, "vocab_size", 512), (batch, length))  # noqa: E731
    found = {}
    if "input_ids" in parameters:
        limit = getattr(text, "max_position_embeddings", None)
        found["input_ids"] = tokens(min(TOKENS[size], limit if isinstance(limit, int) and limit > 0 else TOKENS[size]))
    if "pixel_values" in parameters:
        vision = getattr(config, "vision_config", config)
        extents = getattr(vision, "image_size", 224)
        extents = tuple(extents) if isinstance(extents, (list, tuple)) else (extents, extents)
        if size or max(extents) > 384:
            extents = tuple(_other_extent(min(extent, 384)) for extent in extents)
        found["pixel_values"] = torch.randn(batch, getattr(vision, "num_channels", 3), *extents)
    if main == "input_values":
        # Spectrograms have a number of mel bins, sounds do not.
        bins = getattr(config, "num_mel_bins", None)
        found["input_values"] = torch.randn(batch, getattr(config, "max_length", 1024), bins) if bins else torch.randn(batch, SAMPLES[size])
    if main == "input_features":
        bins, frames = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", 80), FRAMES[size]
        whisper = hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins")
        found["input_features"] = torch.randn(batch, bins, 2 * config.max_source_positions) if whisper else torch.randn(batch, frames, bins)
    if "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = tokens(TOKENS[size] // 2)
    if main not in found:
        raise ValueError(f"takes `{main}`")
    return found
