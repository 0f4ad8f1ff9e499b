"""Workloads of the PyGraph paper (v3, table 2) whose programs are in none of the libraries: the same calls in little."""

from __future__ import annotations

import numpy
import torch
from torch import nn

from .catalog import Built


class EquationOfState(nn.Module):
    """Density of sea water: a quotient of polynomials of salinity, temperature and pressure in f64, element by element."""

    def forward(self, salinity: torch.Tensor, temperature: torch.Tensor, pressure: torch.Tensor) -> torch.Tensor:
        root = torch.sqrt(salinity)
        numerator = 9.998e2 + temperature * (7.355 + temperature * (-5.27e-2 + temperature * 6.49e-4))
        numerator = numerator + salinity * (2.59 - temperature * 7.17e-3 + salinity * 1.91e-3)
        numerator = numerator + pressure * (1.05e-2 + temperature**2 * 9.84e-8 + salinity * 6.25e-6)
        denominator = 1.0 + temperature * (7.29e-3 + temperature * (-4.59e-5 + temperature**2 * 2.14e-10))
        denominator = denominator + salinity * (1.83e-3 - temperature * 9.54e-6 + root * (5.19e-6 + temperature**2 * 1.38e-9))
        return numerator / (denominator + pressure * (5.31e-6 - pressure * temperature**3 * 3.04e-17)) - 1024.0


class TurbulentKineticEnergy(nn.Module):
    """One step in time: masks, fluxes between neighbours, and a tridiagonal system that is solved level by level."""

    def forward(self, energy: torch.Tensor, velocity: torch.Tensor, bottom: torch.Tensor) -> tuple[torch.Tensor, ...]:
        levels = energy.shape[-1]
        root = torch.sqrt(torch.maximum(energy, torch.zeros_like(energy)))
        length = torch.where(root > 0, root / (1e-3 + velocity.abs()), torch.full_like(root, 1e-8))
        mixing = torch.clamp(0.1 * length * root, max=10.0)
        mask = torch.arange(levels) >= bottom[..., None]
        flux = torch.zeros_like(energy)
        flux[..., :-1] = 0.5 * (mixing[..., 1:] + mixing[..., :-1])
        below = -flux.roll(1, -1) * mask
        above = -flux * mask
        diagonal = torch.where(mask, 1.0 - below - above + 0.7 * root / length, torch.ones_like(energy))
        right = torch.where(mask, energy + velocity**2 * mixing, torch.zeros_like(energy))
        factors, values = [above[..., 0] / diagonal[..., 0]], [right[..., 0] / diagonal[..., 0]]
        for level in range(1, levels):
            pivot = 1.0 / (diagonal[..., level] - below[..., level] * factors[-1])
            factors.append(above[..., level] * pivot)
            values.append((right[..., level] - below[..., level] * values[-1]) * pivot)
        for level in reversed(range(levels - 1)):
            values[level] = values[level] - factors[level] * values[level + 1]
        result = torch.where(mask, torch.stack(values, -1), energy)
        advected = torch.zeros_like(result)
        advected[:, 1:-1] = (result[:, 2:] - result[:, :-2]) * velocity[:, 1:-1]
        return result, mixing, advected


class SpeechTransformer(nn.Module):
    """Layers of attention whose scale is a number of NumPy, with masks of padding, and positions added."""

    def __init__(self, layers: int = 2, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.temperature = numpy.power(width // heads, 0.5)
        self.heads = heads
        self.enter = nn.Linear(20, width)
        self.norm = nn.LayerNorm(width)
        angles = torch.arange(64)[:, None] / 1e4 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.layers = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width), "norm": nn.LayerNorm(width),
                           "up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width), "last": nn.LayerNorm(width)})
            for _ in range(layers))

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        batch, count, _ = frames.shape
        padding = torch.arange(count)[None] >= lengths[:, None]
        x = self.norm(self.enter(frames)) + self.positions[:count]
        for layer in self.layers:
            query, key, value = layer["qkv"](x).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            scores = torch.matmul(query, key.transpose(2, 3)) / self.temperature
            scores = scores.masked_fill(padding[:, None, None], -numpy.inf)
            y = torch.matmul(torch.softmax(scores, -1), value).transpose(1, 2).reshape(batch, count, -1)
            x = layer["norm"](layer["out"](y) + x).masked_fill(padding[..., None], 0)
            x = layer["last"](layer["down"](torch.relu(layer["up"](x))) + x).masked_fill(padding[..., None], 0)
        return x


class Diffusion(nn.Module):
    """A small U-Net of diffusion: group norms, SiLU, the time as sines, attention at the bottom, upsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.enter, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
        self.up, self.leave = nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(2 * width, 3, 3, padding=1)
        self.width = width

    def forward(self, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(torch.arange(self.width // 2) * (-9.21 / (self.width // 2)))
        angles = step[:, None].float() * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
        first = self.enter(image)
        x = self.down(nn.functional.silu(self.norms[0](first)))
        x = x + self.middle(nn.functional.silu(self.norms[1](x) + time))
        query, key, value = self.qkv(self.norms[2](x)).flatten(2).transpose(1, 2).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])
        x = x + self.out(y[:, 0].transpose(1, 2).reshape(x.shape))
        return self.leave(torch.cat([self.up(x), first], 1))


class Recommender(nn.Sequential):
    """DeepRecommender: an autoencoder of linear layers and SELU."""

    def __init__(self) -> None:
        widths = [64, 32, 16, 32, 64]
        super().__init__(*(part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.SELU())))


class Dlrm(nn.Module):
    """DLRM: bags of embeddings, their products with each other, and two perceptrons."""

    def __init__(self, tables: int = 3, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + tables * (tables + 1) // 2, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        rows = [x] + [table(indices[number], offsets[number]) for number, table in enumerate(self.tables)]
        stacked = torch.stack(rows, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        lower = torch.tensor([(i, j) for i in range(len(rows)) for j in range(i)]).T
        return self.top(torch.cat([x, products[:, lower[0], lower[1]]], 1))


def eos() -> Built:
    shape = (4, 5, 6)
    return Built(EquationOfState(), tuple(torch.rand(shape, dtype=torch.float64) for _ in range(3)))


def tke() -> Built:
    energy, velocity = (torch.rand(4, 5, 6, dtype=torch.float64) for _ in range(2))
    return Built(TurbulentKineticEnergy(), (energy, velocity, torch.randint(0, 4, (4, 5))))


def speech() -> Built:
    return Built(SpeechTransformer(), (torch.randn(2, 11, 20), torch.tensor([11, 7])))


def diffusion() -> Built:
    return Built(Diffusion(), (torch.randn(2, 3, 16, 16), torch.tensor([3, 500])))


def recommender() -> Built:
    return Built(Recommender(), (torch.randn(8, 64),))


def dlrm() -> Built:
    return Built(Dlrm(), (torch.randn(4, 13), torch.randint(0, 50, (3, 12)), torch.tensor([[0, 3, 6, 9]] * 3)))
