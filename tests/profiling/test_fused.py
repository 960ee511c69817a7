"""Norms and gated activations that keep what fused kernels do, against torch's own compositions."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from trainplan.profiling.models.fused import gated, rms_norm  # noqa: E402
from trainplan.profiling.models.torch_units import ACTIVATIONS  # noqa: E402

SHAPE = (3, 5, 16)
# Half precision rounds results; what torch composes of more steps is rounded as often.
WITHIN = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def _leaves(dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def _gradients(result: Any, leaves: list[Any]) -> list[Any]:
    direction = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view_as(result).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, leaves, direction)]


def _saved(function: Any, *leaves: Any) -> set[tuple[int, int]]:
    """Storages and bytes of what a graph keeps of a function, less its inputs."""
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        function(*leaves)
    return {(pointer, t.nbytes) for pointer, t in saved.items() if pointer not in [leaf.data_ptr() for leaf in leaves]}


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
def test_an_rms_norm_is_torchs(dtype: Any) -> None:
    x, weight = _leaves(dtype, SHAPE, SHAPE[-1:])
    theirs = _gradients(F.rms_norm(x, weight.shape, weight, 1e-5), [x, weight])
    for ours, their in zip(_gradients(rms_norm(x, weight, 1e-5), [x, weight]), theirs, strict=True):
        assert ours.dtype == their.dtype
        torch.testing.assert_close(ours, their, rtol=WITHIN[dtype], atol=WITHIN[dtype])


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gated_activation_is_the_product(name: str, dtype: Any) -> None:
    up, gate = _leaves(dtype, SHAPE, SHAPE)
    theirs = _gradients(ACTIVATIONS[name](gate) * up, [up, gate])
    for ours, their in zip(_gradients(gated(ACTIVATIONS[name], up, gate), [up, gate]), theirs, strict=True):
        torch.testing.assert_close(ours, their, rtol=WITHIN[dtype], atol=WITHIN[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graphs_keep_one_number_a_token_of_a_norm_and_nothing_of_an_activation(dtype: Any) -> None:
    x, weight, up, gate = _leaves(dtype, SHAPE, SHAPE[-1:], SHAPE, SHAPE)
    assert [size for _, size in _saved(lambda x, w: rms_norm(x, w, 1e-5), x, weight)] == [SHAPE[0] * SHAPE[1] * 4]
    for activation in ACTIVATIONS.values():
        assert not _saved(lambda up, gate, f=activation: gated(f, up, gate), up, gate)
    assert _saved(lambda up, gate: F.silu(gate) * up, up, gate), "torch's composition does keep something"
