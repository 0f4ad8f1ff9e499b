"""Complex tensors in compiled models: transforms, and arithmetic on parts."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import orchestrion  # noqa: E402
import orchestrion.torch as ot  # noqa: E402
from orchestrion.torch import _complex  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def check(function, *args, tolerance=2e-4, strict=True) -> None:
    """A function whole, against eager."""
    fast = torch.compile(function, backend="orchestrion", options={"superoptimize": False, "strict": strict})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(*args), function(*args), rtol=tolerance, atol=tolerance)


NORMS = ["backward", "ortho", "forward"]


@pytest.mark.parametrize("norm", NORMS)
def test_transforms_of_real_tensors(norm: str) -> None:
    x = torch.randn(3, 8, 12)
    check(lambda x: torch.fft.fft2(x, norm=norm).real, x)
    check(lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1, norm=norm), dim=-2).imag, x)
    check(lambda x: torch.view_as_real(torch.fft.rfftn(x, dim=(1, 2), norm=norm)), x)
    check(lambda x: torch.fft.ihfft(x, norm=norm).imag, x)
    # Longer and shorter than the tensor.
    check(lambda x: torch.view_as_real(torch.fft.rfft(x, n=16, norm=norm)), x)
    check(lambda x: torch.view_as_real(torch.fft.fft(x, n=7, dim=1, norm=norm)), x)


@pytest.mark.parametrize("norm", NORMS)
def test_filters_of_spectra(norm: str) -> None:
    """As in GFNet and AFNO: a real tensor, its spectrum times learnt complex numbers, and back."""
    weight = torch.randn(6, 4, 5, 2)

    def filtered(x, weight):
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm=norm) * torch.view_as_complex(weight)
        return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm=norm)

    check(filtered, torch.randn(2, 6, 6, 5), weight)
    check(lambda x: torch.fft.irfft(torch.fft.rfft(x), n=9), torch.randn(4, 9))
    check(lambda x: torch.fft.ifft(torch.fft.fft(x, norm=norm), norm=norm).real, torch.randn(4, 10))


def test_rotary_embeddings_as_complex_numbers() -> None:
    def rotated(x):
        angles = torch.outer(torch.arange(5.0), 0.7 ** torch.arange(4.0))
        rotations = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotations[:, None]).flatten(3)

    check(rotated, torch.randn(2, 5, 3, 8))


def test_spectrograms() -> None:
    def spectrogram(x):
        spectrum = torch.stft(x, 32, 8, window=torch.hann_window(32), return_complex=True)
        return spectrum.abs(), (spectrum * spectrum.conj()).real

    check(spectrogram, torch.randn(2, 200), strict=False)


def test_moves_of_complex_tensors() -> None:
    def moved(x, y):
        z = torch.complex(x, y)
        z = torch.cat([z, z.transpose(0, -1).transpose(0, 2)], 1)[:, 1:]
        z = torch.stack([z, -z, z.conj()], -1).flip(0).permute(3, 0, -2, 1)
        z = z - x.sum(0)[:, :1, None, None] + 1.5
        z = (z - z.sum(1, keepdim=True) / 2.0).mean((-1,)) * 0.5
        return torch.view_as_real(z.reshape(2, -1).unsqueeze(-1).expand(2, -1, 3)), z[0, 1].squeeze(-1).abs()

    check(moved, torch.randn(4, 3, 4), torch.randn(4, 3, 4))


def test_results_and_inputs_may_be_complex() -> None:
    def both(x):
        return torch.fft.fft(x) * 2.0, torch.fft.fft(x).real + 1.0

    check(both, torch.randn(3, 8, dtype=torch.complex64), strict=False)
    # What is not known on parts gets complex tensors.
    check(lambda x: torch.exp(torch.fft.fft(x) * 0.1).real, torch.randn(3, 8), strict=False)


def test_gradients_of_a_filter_are_eagers() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5, 2))
            self.linear = nn.Linear(5, 5)

        def forward(self, x):
            spectrum = torch.fft.rfft(self.linear(x), n=8, dim=1)
            spectrum = torch.cat([spectrum[:, :4] * torch.view_as_complex(self.weight), spectrum[:, 4:]], 1)
            return torch.fft.irfft(spectrum, n=8, dim=1)

    model, x = Filter(), torch.randn(2, 8, 5)
    gradients = []
    for function in (model, torch.compile(model, backend="orchestrion", options={"superoptimize": False})):
        model.zero_grad()
        function(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-4, atol=2e-5)


def test_calls_in_forms_that_are_not_known_stay_with_eager() -> None:
    def mixed(x):
        z = torch.fft.fft(x)
        return (z + (2.0 + 1.0j)).real, (z * (z + 1.5)).imag, (z / z.conj().add(3.0)).real, torch.view_as_real(z.sum())

    check(mixed, torch.randn(3, 8), strict=False)


def test_no_call_of_a_transform_stays_with_eager() -> None:
    torch.compile(lambda x: torch.fft.fftn(x, dim=(1, 2)).real, backend="orchestrion")(torch.randn(1, 16, 32))
    (report,) = ot.reports()
    assert not report.eager and report.partitions == 1


@pytest.mark.parametrize("onesided", [False, True])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_operator_says_what_it_gives(onesided: bool, inverse: bool, parts: int) -> None:
    if onesided and not inverse and parts == 2:
        pytest.skip("a signal with two parts has no half that determines the other")
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.randn(3, 6, 2, parts)
    made = _complex.dft(x, 1, 10 if inverse and onesided else 7, inverse, onesided)
    with FakeTensorMode() as mode:
        said = _complex.dft(mode.from_tensor(x), 1, 10 if inverse and onesided else 7, inverse, onesided)
    assert (said.shape, said.stride(), said.dtype) == (made.shape, made.stride(), made.dtype)


def test_exported_models_have_complex_buffers(tmp_path: Path) -> None:
    """Rotations of rotary embeddings, as the reference code of Llama keeps them."""

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rotations", torch.polar(torch.ones(5, 4), torch.randn(5, 4)))

        def forward(self, x):
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.rotations[:, None]).flatten(3)

    model, x = Rotary(), torch.randn(2, 5, 3, 8)
    executable = ot.export(model, (x,), cache_dir=str(tmp_path), superoptimize=False)
    torch.testing.assert_close(executable(x), model(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(orchestrion.Unsupported, match="view_as_real"):
        ot.export(lambda x: torch.fft.fft(x).real, (torch.randn(3, 8, dtype=torch.complex64),), cache_dir=str(tmp_path))
