"""Which parameters Muon steps, what it keeps of them, and what its step computes, against numbers worked out by hand."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.costs.sequential.sublayer_time import unit_work
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes, orthogonal_ns
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.optimizers import ITERATIONS, Matrix, muon_matrices, muon_parameter_count, newton_schulz

LLAMA = load_model("llama3-8b", 8192, "bfloat16")
GPT2 = load_model("gpt2", 64, "bfloat16")
H100 = load_cluster("h100:8")
ATTENTION, NETWORK, NORM, TABLE = 2 * 4096 * 4096 + 2 * 1024 * 4096, 3 * 14336 * 4096, 4096, 128256 * 4096
DEGREES = (1, 2, 4, 8)
PROFILE = estimate_shapes(LLAMA, H100, [(tp, rows) for tp in DEGREES for rows in DEGREES])


def states(sublayer: str, strategy: str, optimizer: str) -> int:
    return unit_bytes(PROFILE, True, sublayer, parse_strategy(strategy), 8, optimizer=optimizer)[2] - 8  # less the loss


def test_matrices_of_layers_are_those_of_muon() -> None:
    attention, network = (LLAMA.sublayers[name] for name in ("attention", "ffn"))
    assert sorted(muon_matrices(attention)) == [(1024, 4096)] * 2 + [(4096, 4096)] * 2
    assert sorted(muon_matrices(network)) == [(4096, 14336)] + [(14336, 4096)] * 2
    assert sorted(muon_matrices(network, 4, 3)) == [(3584, 4096)] * 2 + [(4096, 3584)]
    assert not muon_matrices(LLAMA.sublayers["embedding"]) and not muon_matrices(LLAMA.sublayers["head"])
    packed = muon_matrices(GPT2.sublayers["attention"])  # queries, keys and values in one tensor, each with a bias
    assert packed == [(768, 768)] * 4
    assert muon_matrices(GPT2.sublayers["attention"], 2, 0) == [(384, 768)] * 3 + [(768, 384)]
    t5 = load_model("t5-large", 64)
    tables = [part for part in t5.sublayers.values() if any(p.name == "relative.weight" for p in part.parameters())]
    assert tables
    for part in tables:
        by_muon = muon_parameter_count("muon", part)
        others = sum(prod(p.shape) for p in part.parameters() if p.name.startswith(("relative", "norm")))
        assert by_muon == part.parameter_count() - others


def test_states_of_llama_3_8b_are_those_worked_out_by_hand() -> None:
    """In bfloat16, with gradients in it: 2 + 2 bytes, a master copy of 4, and 4 for each moment, two or one."""
    assert states("attention", "single", "muon") == 12 * ATTENTION + 16 * NORM
    assert states("ffn", "single", "muon") == 12 * NETWORK + 16 * NORM
    assert states("embedding", "single", "muon") == states("embedding", "single", "adamw") == 16 * TABLE
    assert states("attention", "tp8", "muon") == 12 * ATTENTION // 8 + 16 * NORM
    # In ZeRO's stage 1 an eighth of what the optimizer has of a layer; a table is whole on the rank that it is dealt to.
    assert states("ffn", "sdp8-zero1", "muon") == 4 * (NETWORK + NORM) + (8 * NETWORK + 12 * NORM) // 8
    assert states("embedding", "sdp8-zero1", "muon") == 16 * TABLE
    assert states("embedding", "sdp8-zero1", "adamw") == 4 * TABLE + 12 * TABLE // 8
    whole = sum(states(unit.sublayer, "single", "muon") for unit in PROFILE.units)
    assert whole == 16 * 8_030_261_248 - 4 * 32 * (ATTENTION + NETWORK)  # of all parameters, and all matrices of layers


@given(
    tp=st.sampled_from(DEGREES),
    unit=st.sampled_from(PROFILE.units),
    shared=st.booleans(),
)
def test_muon_never_needs_more_states_than_adamw(tp: int, unit: object, shared: bool) -> None:
    """States are those of any sub-layer as a rank has it; of tables that are dealt whole in ZeRO's stage 1, of all ranks
    together, of which the others have parameters and gradients alone."""
    data, name = 8 // tp, unit.sublayer  # type: ignore[attr-defined]
    levels = ([f"sdp{data}"] if shared else [f"dp{data}"]) * (data > 1) + [f"tp{tp}"] * (tp > 1)
    strategy = "-".join(levels or ["single"]) + "-zero1" * (shared and data > 1)
    muon, adamw = states(name, strategy, "muon"), states(name, strategy, "adamw")
    if PROFILE.shapes[name].kind in ("attention", "ffn"):
        assert muon < adamw
        return
    others = 4 * PROFILE.shapes[name].shard(tp).parameters
    together = muon + (data - 1) * others if shared else data * muon
    assert together <= data * adamw + 12 * data  # shards of AdamW are padded


def test_products_of_newton_and_schulz_are_counted_by_hand() -> None:
    for matrix in (Matrix(1024, 4096), Matrix(4096, 1024)):
        flops = sum(operator.flops for operator in newton_schulz(matrix))
        assert flops == 4 * 1024**2 * 4096 + 2 * 1024**3
    (kind,) = H100.used_kinds
    product = kind.reached("matrix-product", "bfloat16")
    assert product is not None
    square = Matrix(16384, 16384)
    ideal = ITERATIONS * 6 * 16384**3 / (kind.flops_per_s["bfloat16"] * product.value) * 1e9
    assert orthogonal_ns([square], kind, "bfloat16") == pytest.approx(ideal, rel=0.1)
    assert orthogonal_ns([square] * 3, kind, "bfloat16") == pytest.approx(3 * orthogonal_ns([square], kind, "bfloat16"))


def test_a_step_of_muon_takes_its_bytes_and_its_products() -> None:
    """From what AdamW touches of a number (gradient and parameter in half precision, copy and two moments in and out in fp32)
    all but a moment; and the products on the parts of a tensor-parallel rank."""
    profile, strategy = PROFILE, parse_strategy("tp4")
    (kind,), rate = H100.used_kinds, profile.optimizer_ns_per_parameter.value
    touched = rate * (NORM + NETWORK // 4 * 20 / 28)
    products = orthogonal_ns(muon_matrices(LLAMA.sublayers["ffn"], 4), kind, "bfloat16")
    assert unit_work(profile, "ffn", strategy, 2, optimizer="muon").optimizer_ns == round(touched + products)
    assert unit_work(profile, "ffn", strategy, 2).optimizer_ns == round(rate * (NORM + NETWORK // 4))
    assert unit_work(profile, "head", strategy, 2, optimizer="muon") == unit_work(profile, "head", strategy, 2)
