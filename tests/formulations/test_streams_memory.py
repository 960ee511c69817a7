"""Memory that frameworks keep of a layer (`costs.overlapped.analytic_memory`), next to what torch keeps of trainplan's own
code."""

from __future__ import annotations

import pytest
from trainplan.formulations.costs.overlapped.frameworks import MEGATRON
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy, RunLayout
from trainplan.formulations.costs.overlapped.unit_memory import kept_bytes
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.sublayers import TokenShare, why_not_shared

NAMES = (
    "llama2-7b", "llama3-8b", "llama3-70b", "qwen2.5-7b", "qwen3-8b", "mistral-7b", "gemma2-9b", "gpt-neox-20b", "falcon-40b",
    "opt-6.7b", "nemotron4-15b", "gpt2-1.3b",
)  # fmt: skip


def _layout(tp: int) -> RunLayout:
    return RunLayout(
        dp=1, tp=tp, pp=1, cp=1, chunks=1, zero=0, shard=1, sequence_parallel=tp > 1, recompute=RecomputePolicy(),
        base="bfloat16", precision="bfloat16", micro=2, batch=2, framework=MEGATRON,
    )  # fmt: skip


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_programs_keep_what_frameworks_do(name: str, tp: int) -> None:
    """The memory of a transformer layer is within 8 %: rotated keys lie next to the product that the values are a part of, and
    the angles."""
    model, layout = load_model(name, 1024, dtype="bfloat16"), _layout(tp)
    parts = [unit.sublayer for unit in model.units if unit.layer == 1]
    if not all(part.splits_into(tp) and (tp == 1 or why_not_shared(part, tp) is None) for part in parts):
        pytest.skip("programs do not lay it out so")
    programs = sum(part.input_bytes(2) // tp + TokenShare(part, tp).costs_bytes(2)["kept_bytes"] for part in parts)
    if tp == 1:
        programs = sum(part.input_bytes(2) + part.kept_bytes(2, 1) for part in parts)
    frameworks = sum(kept_bytes(unit, layout) for unit in model.units if unit.layer == 1)
    assert programs == pytest.approx(frameworks, rel=0.08)


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3.5-9b", "bamba-9b"])
def test_programs_keep_what_frameworks_do_of_hybrids(name: str, tp: int) -> None:
    """Every kind of sub-layer within 8 %: state spaces, delta nets, attention with and without a gate, networks."""
    model, layout = load_model(name, 1024, dtype="bfloat16"), _layout(tp)
    units = {model.key_of(unit): unit for unit in model.units[1:-1]}
    kinds = {unit.kind for unit in units.values()}
    assert kinds in ({"state_space", "attention", "ffn"}, {"delta_net", "attention", "ffn"})
    if not all(unit.sublayer.splits_into(tp) for unit in units.values()):
        pytest.skip("programs do not lay it out so")  # Bamba's heads are one group
    for unit in units.values():
        part = unit.sublayer
        programs = part.input_bytes(2) // tp + TokenShare(part, tp).costs_bytes(2)["kept_bytes"]
        if tp == 1:
            programs = part.input_bytes(2) + part.kept_bytes(2, 1)
        assert programs == pytest.approx(kept_bytes(unit, layout), rel=0.08), unit.name
