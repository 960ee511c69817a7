"""Layout, exchange, time and memory of units of experts, against counts that are made here anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.analytic_step import chunks_of, stepped_parameters, streams_step
from trainplan.formulations.costs.overlapped.expert_exchange import Routed, dispatched_ns, visited
from trainplan.formulations.costs.overlapped.expert_memory import experts_kept_bytes
from trainplan.formulations.costs.overlapped.expert_time import exchanged_ns, expert_times
from trainplan.formulations.costs.overlapped.expert_work import rows_of
from trainplan.formulations.costs.overlapped.folding import (
    FITTED,
    NO_EXPERTS,
    ExpertsLayout,
    check_folded,
    expert_data_degree,
    folded_words,
    parse_folded,
)
from trainplan.formulations.costs.overlapped.frameworks import OVERLAPPED
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy, RunLayout
from trainplan.formulations.costs.overlapped.links import LAUNCH_NS, Links
from trainplan.formulations.costs.overlapped.state_exchange import rank_parameters
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.models.model import Model, model_from_config
from trainplan.profiling.models.sublayers import Experts

LINKS = Links(8, 4e11, 5e10)
PART = Experts(tokens=4096, hidden=2048, experts=64, chosen=4, inner=1024, dtype="bfloat16", norm="rms")
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
}


def layout_of(experts: ExpertsLayout = NO_EXPERTS, **fields: Any) -> RunLayout:
    """A run on 16 devices, data-parallel unless `fields` say otherwise."""
    degrees = {"dp": 16, "tp": 1, "pp": 1, "cp": 1, "chunks": 1} | {k: v for k, v in fields.items() if k in ("dp", "tp", "pp")}
    rest = {key: value for key, value in fields.items() if key not in degrees}
    base: dict[str, Any] = {
        "zero": 1, "shard": degrees["dp"], "sequence_parallel": degrees["tp"] > 1, "recompute": RecomputePolicy(),
        "base": "bfloat16", "precision": "bfloat16", "micro": 1, "batch": 64, "framework": OVERLAPPED, "experts": experts,
    }  # fmt: skip
    return RunLayout(**degrees, **(base | rest))


def mixtral() -> Model:
    """A small Mixtral."""
    return model_from_config(MIXTRAL, "mixtral", 2048, "bfloat16", planned=False)


def test_a_layout_of_experts_is_written_and_read() -> None:
    for text, degrees in {"edp4-ep8": (4, 8, 1), "edp2-ep8-etp2": (2, 8, 2), "ep16": (1, 16, 1), "single": (1, 1, 1)}.items():
        assert parse_folded(text) == degrees
        assert folded_words(*degrees) == text
    assert layout_of(ExpertsLayout(ep=8), dp=16, tp=2).expert_words == "edp4-ep8"
    for text in ("", "ep", "dp4-ep8", "edp0-ep8", "-ep8", "ep8-edp4"):
        with pytest.raises(InputError, match="edp4-ep8"):
            parse_folded(text)


def test_degrees_that_do_not_divide_name_those_that_do() -> None:
    assert expert_data_degree(32, 8, 2) == 2
    with pytest.raises(InputError, match="give one of 1, 2, 4, 8, 16, 32"):
        expert_data_degree(32, 64, 1)
    with pytest.raises(InputError, match="give one of 1, 2, 3, 6"):
        check_folded(6, 64, 4, 1)
    with pytest.raises(InputError, match="etp is 3"):
        check_folded(6, 64, 2, 3)


@pytest.mark.parametrize(("groups", "experts", "chosen"), [(2, 8, 2), (4, 8, 3), (8, 8, 2), (3, 6, 4), (2, 4, 4)])
def test_the_ranks_that_a_token_visits_are_those_of_all_its_choices(groups: int, experts: int, chosen: int) -> None:
    own = experts // groups
    choices = [len({expert // own for expert in choice}) for choice in combinations(range(experts), chosen)]
    assert visited(groups, experts, chosen) == pytest.approx(sum(choices) / len(choices))


def test_groups_of_a_router_bound_the_nodes_that_a_token_visits() -> None:
    limited = Routed(1.0, 1, 256, 8, groups=8, chosen_groups=4)
    assert limited.visited(8) == pytest.approx(visited(4, 128, 8))
    assert limited.visited(4) <= 4
    assert limited.visited(64) == pytest.approx(visited(32, 128, 8))
    assert limited.visited(64) < Routed(1.0, 1, 256, 8).visited(64)


def test_single_copies_to_nodes_save_what_copies_of_one_token_share() -> None:
    tokens, width, element = 4096, 2048, 2
    routed = Routed(tokens, width, 64, 8)
    plain = dispatched_ns(routed, ExpertsLayout(ep=16), LINKS, element)
    single = dispatched_ns(routed, ExpertsLayout(ep=16, dispatcher="deduplicated"), LINKS, element)
    sent = tokens * 8 * width * element / FITTED.exchange
    assert plain == pytest.approx(sent / 2 / LINKS.across_bytes_per_s * 1e9 + LINKS.across_ns + LAUNCH_NS)
    crossing = visited(2, 64, 8) / 2 * sent / 8
    assert single == pytest.approx(crossing / LINKS.across_bytes_per_s * 1e9 + LINKS.across_ns + LAUNCH_NS)
    assert dispatched_ns(routed, ExpertsLayout(ep=1), LINKS, element) == 0
    within = dispatched_ns(routed, ExpertsLayout(ep=8), LINKS, element)
    assert within == pytest.approx(sent * 7 / 8 / LINKS.within_bytes_per_s * 1e9 + LINKS.within_ns + LAUNCH_NS)
    wider = dispatched_ns(routed, ExpertsLayout(ep=16), replace(LINKS, node=64), element)  # one domain of 64 devices
    assert wider < plain / 4


def test_eight_bits_halve_what_is_sent_and_not_what_comes_back() -> None:
    both = exchanged_ns(PART, layout_of(ExpertsLayout(ep=16)), LINKS)
    sent = exchanged_ns(PART, layout_of(ExpertsLayout(ep=16, dispatched_bytes=1)), LINKS)
    fixed = LINKS.across_ns + LAUNCH_NS
    assert (sent - 2 * fixed) / (both - 2 * fixed) == pytest.approx(0.75)


def test_imbalance_and_capacity_decide_the_fullest_ranks_rows() -> None:
    mean = 4096 * 4
    for experts, rows in (
        (ExpertsLayout(ep=8), mean),
        (ExpertsLayout(ep=8, imbalance=1.5), 1.5 * mean),
        (ExpertsLayout(ep=8, imbalance=1.5, capacity=1.25), 1.25 * mean),
        (ExpertsLayout(ep=8, imbalance=1.1, capacity=1.25), 1.1 * mean),
        (ExpertsLayout(ep=8, imbalance=1.1, capacity=1.25, padded=True), 1.25 * mean),
        (ExpertsLayout(ep=8, etp=2), 2 * mean),
    ):
        assert rows_of(PART, layout_of(experts)) == pytest.approx(rows)
    assert rows_of(PART, layout_of(ExpertsLayout(ep=8), dp=8, tp=2)) == pytest.approx(mean / 2)


def test_what_runs_alongside_hides_the_exchange() -> None:
    kind = device_kind("h100", shipped_efficiencies())
    plain = expert_times(PART, layout_of(ExpertsLayout(ep=16)), kind, LINKS)
    behind = expert_times(PART, layout_of(ExpertsLayout(ep=16, exchange_alongside=True)), kind, LINKS)
    assert plain.collectives_ns == pytest.approx(exchanged_ns(PART, layout_of(ExpertsLayout(ep=16)), LINKS))
    assert (behind.collectives_ns, behind.exchange_ns) == (0, plain.collectives_ns)
    shared = replace(PART, shared_inner=4096)
    times = [
        expert_times(shared, layout_of(ExpertsLayout(ep=16, shared_alongside=alongside)), kind, LINKS)
        for alongside in (False, True)
    ]
    assert times[1].collectives_ns < times[0].collectives_ns
    assert times[1].forward_ns == times[0].forward_ns


def test_few_rows_for_an_expert_make_products_slower() -> None:
    kind = device_kind("h100", shipped_efficiencies())
    few = replace(PART, experts=512, chosen=4)
    assert (
        expert_times(few, layout_of(ExpertsLayout(ep=16)), kind, LINKS).forward_ns
        > expert_times(PART, layout_of(ExpertsLayout(ep=16)), kind, LINKS).forward_ns
    )


def test_modules_that_are_recomputed_are_not_kept_and_take_time() -> None:
    kind, part = device_kind("h100", shipped_efficiencies()), replace(PART, shared_inner=1024)
    kept, again = [], []
    for recompute in (
        RecomputePolicy(),
        RecomputePolicy(experts_activation=True),
        RecomputePolicy(shared_experts=True),
        RecomputePolicy(experts=True),
    ):
        layout = layout_of(ExpertsLayout(ep=8), recompute=recompute)
        kept.append(experts_kept_bytes(part, layout, 2))
        again.append(expert_times(part, layout, kind, LINKS).recompute_ns)
    rows = 4096 * 4
    assert kept[0] - kept[1] == rows * 1024 * 2
    assert kept[0] - kept[2] == 4096 * 3 * 1024 * 2
    assert kept[3] == 0
    assert 0 == again[0] < min(again[1:3]) < max(again[1:3]) < again[3]


@pytest.mark.parametrize("experts", [ExpertsLayout(ep=8), ExpertsLayout(ep=4, etp=2), ExpertsLayout(ep=8, etp=2)])
def test_states_of_experts_are_shared_by_the_ranks_that_hold_them_alone(experts: ExpertsLayout) -> None:
    model, layout = mixtral(), layout_of(experts)
    routed = sum(prod(p.shape) for unit in model.units for p in unit.sublayer.parameters() if p.routed)
    others = model.total_parameters - routed
    on_rank = [rank_parameters(unit.sublayer, layout) for unit in model.units]
    assert sum(pair[1] for pair in on_rank) == routed / experts.ep / experts.etp
    assert sum(pair[0] for pair in on_rank) == others
    assert stepped_parameters(model, chunks_of(model, layout), layout) == pytest.approx(others / 16 + routed / 16)
    alone = layout_of(replace(experts, ep=8, etp=2))
    assert alone.edp == alone.expert_sharing == 1  # ZeRO shares nothing of these experts


def test_more_imbalance_takes_more_time_and_memory() -> None:
    model, kind = mixtral(), device_kind("h100", shipped_efficiencies())
    steps, peaks = [], []
    for imbalance in (1.0, 1.3, 2.0):
        layout = layout_of(ExpertsLayout(ep=8, imbalance=imbalance))
        steps.append(streams_step(model, layout, kind, LINKS).step_ns)
        peaks.append(run_memory(model, layout)[0].peak_bytes)
    assert steps == sorted(set(steps))
    assert peaks == sorted(set(peaks))


def test_fully_sharded_states_are_as_many_bytes_by_ep_as_by_edp() -> None:
    memory = [run_memory(mixtral(), layout_of(ExpertsLayout(ep=ep), zero=3))[0] for ep in (1, 2, 8)]
    assert memory[0].standing_bytes == pytest.approx(memory[1].standing_bytes) == pytest.approx(memory[2].standing_bytes)
    assert memory[0].states_bytes > memory[2].states_bytes  # whole blocks are gathered
