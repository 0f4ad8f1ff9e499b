"""Tensors of PyTorch in calls."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import expected, numbers

import orchestrion as orc

torch = pytest.importorskip("torch")


def check(results, x: np.ndarray) -> None:
    assert all(isinstance(result, torch.Tensor) for result in results)
    for got, want in zip(results, expected(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_tensors_in_tensors_out(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    check(exe(torch.from_numpy(x)), x)
    check(exe(torch.nn.Parameter(torch.from_numpy(x))), x)
    check(exe(torch.from_numpy(np.ascontiguousarray(x.T)).T), x)
    check(exe(torch.from_numpy(x).expand(5, 6)), x)


def test_misaligned_and_negated_views(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    memory = torch.zeros(31)
    memory[1:] = torch.from_numpy(x).reshape(-1)
    check(exe(memory[1:].reshape(5, 6)), x)
    negated = torch.complex(torch.zeros(5, 6), torch.from_numpy(-x)).conj().imag
    assert negated.is_neg()
    check(exe(negated), x)


def test_out(exe: orc.Executable) -> None:
    x = numbers(5, 6)
    out = torch.zeros(5, 4), torch.zeros(5)
    assert exe(torch.from_numpy(x), out=out) is out
    check(out, x)


def test_other_devices_are_refused(exe: orc.Executable) -> None:
    with pytest.raises(orc.InputError, match="input `x`"):
        exe(torch.zeros(5, 6, device="meta"))
    with pytest.raises(orc.InputError, match="input `x`"):
        exe(torch.zeros(5, 6).to_sparse())
