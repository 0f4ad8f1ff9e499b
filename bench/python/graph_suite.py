"""The twenty workloads of PyGraph's evaluation: twelve from torchvision, timm and transformers, eight rewritten in a few lines.

Each is built with random weights in one of three scales: `full` (layers and batch of the paper), `small` (two layers where a model has
many, tables that fit beside others, the paper's batch but for images), `tiny` (for CPUs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

SCALES = ("full", "small", "tiny")


@dataclass(frozen=True)
class Workload:
    """A workload: its model and inputs by scale and batch."""

    build: Callable[[str, int], tuple[nn.Module, list[torch.Tensor]]]
    batch: int
    train: bool = False
    dtype: torch.dtype | None = None
    """The element type that it needs, if it is not the run's."""

    def make(self, scale: str) -> tuple[nn.Module, list[torch.Tensor]]:
        """Model and inputs, on the CPU in f32 or f64."""
        torch.manual_seed(0)
        batch = {"full": self.batch, "small": self.batch, "tiny": min(self.batch, 2)}[scale]
        model, inputs = self.build(scale, batch)
        return model.train(self.train), inputs


def by_scale(scale: str, full: Any, small: Any, tiny: Any) -> Any:
    return {"full": full, "small": small, "tiny": tiny}[scale]


# Of libraries


class _First(nn.Module):
    """The first tensor of a model's output."""

    def __init__(self, model: nn.Module, **named: Any) -> None:
        super().__init__()
        self.model, self.named = model, named

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs, **self.named)[0]


def _language(kind: str, auto: str, **config: Any) -> Callable[[str, int], tuple[nn.Module, list[torch.Tensor]]]:
    def build(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
        import transformers

        names = {"distilbert": ("n_layers", "dim", "n_heads", "hidden_dim"), "gpt2": ("n_layer", "n_embd", "n_head", "n_inner"),
                 "xlnet": ("n_layer", "d_model", "n_head", "d_inner")}
        layers, width, heads, inner = names.get(kind, ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"))
        sizes = by_scale(scale, {}, {layers: 2}, {layers: 1, width: 32, heads: 2, inner: 64, "vocab_size": 64})
        settings = transformers.AutoConfig.for_model(kind, **{**config, **sizes})
        for special in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if (getattr(settings, special, None) or 0) >= settings.vocab_size:
                setattr(settings, special, 0)
        model = getattr(transformers, auto).from_config(settings)
        ids = torch.randint(2, settings.vocab_size, (batch, by_scale(scale, 512, 128, 8)))
        return _First(model, **({"use_cache": False} if kind == "gpt2" else {})), [ids]

    return build


def _clip(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    import transformers

    part = by_scale(scale, {}, {"num_hidden_layers": 2}, {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64})
    image = by_scale(scale, 224, 224, 32)
    settings = transformers.CLIPConfig(text_config=part, vision_config={**part, "image_size": image, "patch_size": 16})

    class Similarity(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.CLIPModel(settings)

        def forward(self, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, pixel_values=pixels).logits_per_image

    return Similarity(), [torch.randint(1, 400, (batch, 32)), torch.randn(batch, 3, image, image)]


def _maskrcnn(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    import torchvision

    extent = by_scale(scale, 800, 480, 64)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"min_size": extent, "max_size": extent}
            self.model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, **sizes)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.model(list(image.unbind(0)))[0]["boxes"]

    return Detector(), [torch.rand(batch, 3, extent, extent)]


def _alexnet(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    import torchvision

    return torchvision.models.alexnet(weights=None), [torch.randn(batch, 3, 224, 224)]


def _lcnet(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    import timm

    extent = by_scale(scale, 224, 224, 64)
    return timm.create_model("lcnet_050", pretrained=False), [torch.randn(batch, 3, extent, extent)]


# Rewritten


def _painter(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    """The actor of Learning to Paint: a ResNet-18 of nine channels."""
    import torchvision

    model = torchvision.models.resnet18(weights=None, num_classes=65)
    model.conv1 = nn.Conv2d(9, 64, 3, 2, 1, bias=False)
    extent = by_scale(scale, 128, 128, 32)
    return nn.Sequential(model, nn.Sigmoid()), [torch.randn(batch, 9, extent, extent)]


class _Autoencoder(nn.Module):
    """DeepRecommender: layers of SELU, with dropout in the middle."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        widths = (items, width, width, 2 * width, width, width, items)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.dropout = nn.Dropout(0.8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = nn.functional.selu(layer(x))
            if number == 2:
                x = self.dropout(x)
        return x


def _recommender(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    items = by_scale(scale, 197951, 17768, 64)
    return _Autoencoder(items, by_scale(scale, 512, 512, 16)), [torch.rand(batch, items)]


class _ClickModel(nn.Module):
    """DLRM: tables of embeddings in bags, products of all pairs, two towers."""

    def __init__(self, rows: int, width: int, inner: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(36 + width, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, 1), nn.Sigmoid())
        pairs = torch.tril_indices(9, 9, -1)
        self.register_buffer("pairs", pairs[0] * 9 + pairs[1], persistent=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(ids[number]) for number, table in enumerate(self.tables))], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products[:, self.pairs]], 1))


def _dlrm(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    rows = by_scale(scale, 1_000_000, 100_000, 50)
    model = _ClickModel(rows, by_scale(scale, 64, 64, 8), by_scale(scale, 1024, 1024, 16))
    return model, [torch.randn(batch, 512), torch.randint(0, rows, (8, batch, 10))]


class _Attention(nn.Module):
    """Attention whose temperature is a number of NumPy, as in the paper's figure 4."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.temperature = np.power(np.float64(width // heads), 0.5)

    def forward(self, x: torch.Tensor, of: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        scores = split(self.query(x)) @ split(self.key(of)).transpose(-1, -2) / self.temperature
        if mask is not None:
            scores = scores.masked_fill(mask, -1e4)
        return self.out((scores.softmax(-1) @ split(self.value(of))).transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, *, crossed: bool) -> None:
        super().__init__()
        self.own = _Attention(width, heads)
        self.crossed = _Attention(width, heads) if crossed else None
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.norms[0](x + self.own(x, x, mask))
        if self.crossed is not None and memory is not None:
            x = self.norms[1](x + self.crossed(x, memory, None))
        return self.norms[2](x + self.mlp(x))


class _Speech(nn.Module):
    """Speech Transformer: encoder of frames, decoder of tokens; positions are a tensor of the host."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.enter = nn.Linear(80, width)
        self.embed = nn.Embedding(1000, width)
        self.encoder = nn.ModuleList(_Layer(width, heads, crossed=False) for _ in range(layers))
        self.decoder = nn.ModuleList(_Layer(width, heads, crossed=True) for _ in range(layers))
        self.leave = nn.Linear(width, 1000)
        at = torch.arange(2048)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        # Not a buffer: it stays on the CPU.
        self.positions = [torch.stack([at.sin(), at.cos()], -1).flatten(1)]

    def forward(self, frames: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        positions = self.positions[0].to(frames.device, frames.dtype)
        memory = self.enter(frames) + positions[: frames.shape[1]]
        for layer in self.encoder:
            memory = layer(memory, None, None)
        x = self.embed(ids) * math.sqrt(positions.shape[1]) + positions[: ids.shape[1]]
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.leave(x)


def _speech(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    model = _Speech(by_scale(scale, 6, 2, 1), by_scale(scale, 512, 512, 32), by_scale(scale, 8, 8, 2))
    return model, [torch.randn(batch, by_scale(scale, 204, 204, 8), 80), torch.randint(0, 1000, (batch, by_scale(scale, 22, 22, 4)))]


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, 1, 1))
        self.second = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, 1, 1))
        self.time = nn.Linear(time, outside)
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.skip(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])


class _Unet(nn.Module):
    """The U-Net of a diffusion model, in the place of DALL-E 2."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**number for number in range(depth)]
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter, self.leave = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        following = [*widths[1:], widths[-1]]
        self.down = nn.ModuleList(_Residual(a, b, 4 * width) for a, b in zip(widths, following))
        self.up = nn.ModuleList(_Residual(2 * b, a, 4 * width) for a, b in zip(widths[::-1], following[::-1]))
        self.middle = _Attention(widths[-1], 4)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        at = step[:, None] * torch.exp(torch.arange(self.width // 2, device=x.device) * (-9.2 / (self.width // 2)))
        time = self.time(torch.cat([at.sin(), at.cos()], 1).to(x.dtype))
        x = self.enter(x)
        kept = []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.middle(flat, flat, None).transpose(1, 2).reshape(x.shape)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.leave(x)


def _dalle(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    extent = by_scale(scale, 64, 64, 16)
    model = _Unet(by_scale(scale, 128, 128, 16), by_scale(scale, 4, 3, 2))
    return model, [torch.randn(batch, 3, extent, extent), torch.full((batch,), 17.0)]


class _StateOfSeawater(nn.Module):
    """Density of seawater: a quotient of polynomials in f64, elementwise, as pyhpc's equation of state."""

    def __init__(self) -> None:
        super().__init__()
        numbers = np.random.default_rng(0).uniform(0.1, 1.0, 48)
        self.coefficients = [float(number) * 10.0 ** -(place % 7) for place, number in enumerate(numbers)]

    def forward(self, salt: torch.Tensor, heat: torch.Tensor, pressure: torch.Tensor) -> torch.Tensor:
        c, root = self.coefficients, torch.sqrt(salt)

        def line(first: int) -> torch.Tensor:
            return c[first] + heat * (c[first + 1] + heat * (c[first + 2] + heat * c[first + 3]))

        def part(first: int) -> torch.Tensor:
            return line(first) + salt * (line(first + 4) + root * line(first + 8))

        above = part(0) + pressure * (line(12) + pressure * line(16))
        below = part(20) + pressure * (line(32) + salt * line(36) + pressure * (line(40) + pressure * line(44)))
        return above / (below + 1000.0)


def _cells(scale: str, batch: int) -> tuple[int, int, int]:
    """Columns along two directions, and levels: as many cells as the paper's batch says."""
    return by_scale(scale, (204, 204, 26), (204, 204, 26), (4, 4, 6))


def _seawater(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    shape = _cells(scale, batch)
    return _StateOfSeawater(), [torch.rand(shape, dtype=torch.float64) * size for size in (35.0, 20.0, 1000.0)]


class _Turbulence(nn.Module):
    """Turbulent kinetic energy: forcing, a tridiagonal system along each column, fluxes, as pyhpc's benchmark."""

    def forward(self, speed: torch.Tensor, energy: torch.Tensor, density: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        root = torch.sqrt(torch.clamp(energy, min=0.0))
        buoyancy = torch.diff(density, dim=-1, prepend=density[..., :1])
        length = torch.clamp(math.sqrt(2.0) * root / torch.sqrt(torch.clamp(buoyancy, min=1e-12)), max=100.0)
        mixing = torch.clamp(0.1 * length * root, max=100.0)
        shear = torch.diff(speed, dim=-1, prepend=speed[..., :1]) ** 2
        prandtl = torch.clamp(6.6 * buoyancy / torch.clamp(shear, min=1e-12), min=1.0, max=10.0)
        flux = mixing / (1.0 + depth)
        a, c = -flux, -torch.roll(flux, -1, -1)
        b = 1.0 - a - c + 0.7 * root / torch.clamp(length, min=1e-8)
        d = energy + mixing * shear - mixing / prandtl * buoyancy
        levels = energy.shape[-1]
        above, right = [c[..., 0] / b[..., 0]], [d[..., 0] / b[..., 0]]
        for level in range(1, levels):
            scale = 1.0 / (b[..., level] - a[..., level] * above[-1])
            above.append(c[..., level] * scale)
            right.append((d[..., level] - a[..., level] * right[-1]) * scale)
        solved = [right[-1]]
        for level in range(levels - 2, -1, -1):
            solved.append(right[level] - above[level] * solved[-1])
        found = torch.stack(solved[::-1], -1)
        mask = (depth > 0.05).to(found.dtype)
        for axis in (0, 1):
            step = (torch.roll(found, -1, axis) - found) * 2e3 * mask
            found = found + 1e-5 * (step - torch.roll(step, 1, axis))
        return torch.where(found > 0, found, -0.5 * found)


def _turbulence(scale: str, batch: int) -> tuple[nn.Module, list[torch.Tensor]]:
    return _Turbulence(), [torch.rand(_cells(scale, batch), dtype=torch.float64) for _ in range(4)]


#: By the paper's short names. The batch of the two of pyhpc is a number of cells.
WORKLOADS: dict[str, Workload] = {
    "EOS": Workload(_seawater, 1 << 20, dtype=torch.float64),
    "ST": Workload(_speech, 1),
    "DALLE": Workload(_dalle, 1),
    "MMC": Workload(_clip, 1),
    "TKE": Workload(_turbulence, 1 << 20, dtype=torch.float64),
    "DR-T": Workload(_recommender, 4096, train=True),
    "DR-I": Workload(_recommender, 256),
    "VM": Workload(_maskrcnn, 1, dtype=torch.float32),
    "LP": Workload(_painter, 16, train=True),
    "ANET": Workload(_alexnet, 128),
    "DLRM": Workload(_dlrm, 2048),
    "XLNet-I": Workload(_language("xlnet", "AutoModelForCausalLM"), 8),
    "XLNet-T": Workload(_language("xlnet", "AutoModelForCausalLM"), 8, train=True),
    "ECML": Workload(_language("electra", "AutoModelForCausalLM", is_decoder=True), 64, train=True),
    "CBERT": Workload(_language("camembert", "AutoModelForMaskedLM"), 64, train=True),
    "DGPT": Workload(_language("gpt2", "AutoModelForCausalLM", n_layer=6), 16, train=True),
    "DMLM": Workload(_language("deberta", "AutoModelForMaskedLM"), 16, train=True),
    "GLFNET": Workload(_language("fnet", "AutoModelForMaskedLM"), 16, train=True),
    "DBMLM": Workload(_language("distilbert", "AutoModelForMaskedLM"), 128, train=True),
    "LCNET": Workload(_lcnet, 256),
}
