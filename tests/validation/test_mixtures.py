"""Measured runs of mixtures of experts: what rows say, the models that they train, and how well they are predicted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_step import chunks_of
from trainplan.formulations.costs.overlapped.folding import ExpertRates
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.sublayers import Experts, LatentAttention, TokenJoin

from trainplan.validation.calibration_rows import APART, rows_of, runs_of
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.mixture_fit import fitted_mixtures, main, mixtures_with_steps
from trainplan.validation.mixture_words import EAGER_NS, EXPERT_NS, REAL_IMBALANCE, WAITED_NS, string_stages
from trainplan.validation.predict import predict_runs, step_of
from trainplan.validation.rows import Run, load_runs

DATA = Path(os.environ.get("TRAINPLAN_DATA") or Path(__file__).parents[3] / "shared/data") / "measured"
ROW: dict[str, Any] = {
    "id": "one", "source": "made up", "model": "deepseek-v3", "gpu": "GB200-192GB-NVL72", "gpus": 256, "seq": 4096, "gbs": 2048,
    "mbs": 1, "pp": 4, "vpp": 4, "ep": 64, "precision": "MXFP8", "recompute": "selective(mla_up_proj)", "mtp": 1, "step_s": 9.0,
    "framework": "Megatron-Bridge", "date": "25.11", "routing": "forced balance",
}  # fmt: skip


def laid(**fields: Any) -> LaidRun:
    """The row, with fields replaced, as a configuration."""
    return laid_run(load_runs([ROW | fields])[0])


def test_a_known_mixture_has_its_published_sizes_and_the_rows_layers() -> None:
    row = laid()
    model, known = row.model, load_model("deepseek-v3", 4096, "bfloat16", planned=False)
    further = [unit for unit in model.units if isinstance(unit.sublayer, TokenJoin)]
    assert (model.layers, known.layers, len(further)) == (62, 61, 1)
    experts = [unit.sublayer for unit in model.units if isinstance(unit.sublayer, Experts)]
    assert len(experts) == 61 - 3 + 1
    assert any(isinstance(unit.sublayer, LatentAttention) for unit in model.units)
    assert row.layout.expert_words == "ep64"
    joined = 2 * model.units[0].sublayer.hidden ** 2
    own = sum(unit.sublayer.parameter_count() for unit in model.units if unit.layer == 62)
    last = sum(unit.sublayer.parameter_count() for unit in known.units if unit.layer == 61)
    assert own - last == pytest.approx(joined, rel=1e-3)  # a layer, and its projection; table and head are shared


def test_layers_that_stages_do_not_divide_lie_as_bridges_layouts_have_them() -> None:
    row = laid()
    assert [chunk.layers for chunk in chunks_of(row.model, row.layout)] == [4] * 15 + [2]  # 61 and the further one
    written = laid(pp_layout="Et*4|(t*4|)*14tmL")
    assert written.layout.stage_layers == (*[4] * 15, 2)
    noted = laid(mtp=None, note="pipeline layout Et*4|(t*4|)*14tmL; dispatcher deepep")
    assert noted.layout.stage_layers == (*[4] * 15, 2)
    others = laid(mtp=None, note="pipeline layout Et*3|(t*4|)*14ttmL")
    assert others.layout.stage_layers == (3, *[4] * 14, 3), "not those that recipes have"
    (cannot,) = predict_runs(load_runs([ROW | {"pp_layout": "Et*4|t*4L"}]))
    assert "give 62 layers in 16 stages" in cannot.cannot
    assert string_stages(Run(id="x", model="m", gpu="h100", gpus=8), 4, 2) is None


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({}, {"dispatcher": "deduplicated", "imbalance": 1.0, "issue_ns": EAGER_NS + 4 * EXPERT_NS, "fused": False}),
        ({"dispatcher": "alltoall"}, {"dispatcher": "all-to-all"}),
        ({"note": "dispatcher A2A"}, {"dispatcher": "all-to-all"}),
        ({"framework": "Megatron-Core", "note": "TE + DeepEP"}, {"dispatcher": "deduplicated"}),
        ({"framework": "Megatron-Core"}, {"dispatcher": "all-to-all"}),
        ({"routing": "real"}, {"imbalance": REAL_IMBALANCE}),
        ({"routing": "real", "imbalance": 1.1}, {"imbalance": 1.1}),
        ({"routing": None, "note": "fake balanced gate"}, {"imbalance": 1.0}),
        ({"cuda_graph": "transformer_engine: ['moe_router']"}, {"issue_ns": WAITED_NS}),
        ({"cuda_graph": "none", "ep": 8}, {"issue_ns": EAGER_NS + 32 * EXPERT_NS}),
        ({"cuda_graph": "full_iteration: []"}, {"issue_ns": 0.0, "fused": True}),
        ({"date": "26.08"}, {"issue_ns": 0.0, "fused": True, "exchange_alongside": True}),
        ({"date": "26.08", "ep_overlap": False}, {"exchange_alongside": False}),
        ({"date": "26.08", "precision": "bf16"}, {"fused": False, "exchange_alongside": False}),
        ({"note": "flags overlap-moe-expert-parallel-comm"}, {"exchange_alongside": True}),
        ({"note": "fp8 dispatch, combine in bf16"}, {"dispatched_bytes": 1.0}),
        ({"note": "no fp8 dispatch"}, {"dispatched_bytes": None}),
        ({"note": "moe-shared-expert-overlap"}, {"shared_alongside": True}),
        ({"etp": 1, "ep": 8}, {"ep": 8, "etp": 1}),
        ({"pp": 2, "tp": 2, "ep": 8}, {"ep": 8, "etp": 2}),  # Megatron-Core's default is tp
    ],
)
def test_words_of_a_row_decide_how_its_experts_run(fields: dict[str, Any], known: dict[str, Any]) -> None:
    experts = laid(**fields).layout.experts
    assert {name: getattr(experts, name) for name in known} == known


def test_what_cannot_be_laid_out_says_what_would_work() -> None:
    for fields, words in {
        "ep": ({"ep": 48}, "give one of 1, 2, 4, 8, 16, 32, 64"),
        "etp": ({"etp": 3, "ep": 1}, "of a stage of 64 devices"),
        "dispatcher": ({"dispatcher": "pigeons"}, "give alltoall, allgather, deepep or hybridep"),
        "sizes": ({"model": "a mixture", "experts": 8}, "are predicted by their sizes"),
    }.values():
        (found,) = predict_runs(load_runs([ROW | fields]))
        assert words in found.cannot


def test_a_mixture_is_predicted_by_its_name_alone() -> None:
    fields = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "ep": 8, "gbs": 64}
    (found,) = predict_runs(load_runs([{"id": "named", **fields}]))
    assert found.laid is not None, found.cannot
    assert found.laid.model.total_parameters == pytest.approx(30.5e9, rel=0.01)
    assert {"dispatcher", "imbalance"} <= found.laid.assumed.keys()


def test_balanced_routing_is_predicted_faster_than_real() -> None:
    balanced, real = predict_runs(load_runs([ROW, ROW | {"id": "two", "routing": "real"}]))
    assert balanced.step_s is not None
    assert real.step_s is not None
    assert 1.05 < real.step_s / balanced.step_s < 1.3
    assert "edp" not in balanced.to_dict()
    assert "experts ep64" in next(row["layout"] for row in predict_runs(load_runs([ROW])).rows())


def test_efficiencies_of_dense_models_are_not_fitted_to_mixtures() -> None:
    runs = load_runs([ROW])
    assert rows_of(runs).left_out == {"one": APART}


def test_the_fit_finds_the_numbers_that_steps_were_made_with(capsys: pytest.CaptureFixture[str]) -> None:
    truth = ExpertRates(0.5, 0.9, 0.4)
    rows = []
    for number, fields in enumerate(
        ({}, {"precision": "bf16"}, {"gpu": "H100-80GB-SXM"}, {"gpu": "H100-80GB-SXM", "precision": "bf16"})
    ):
        row = laid(id=str(number), source=str(number), cuda_graph="full_iteration", gbs=256, dispatcher="alltoall", **fields)
        layout = replace(row.layout, experts=replace(row.layout.experts, rates=truth))
        step = step_of(replace(row, layout=layout), shipped_efficiencies()).step_ns / 1e9
        rows.append(replace(row, run=row.run.changed(step_s=step)))
    fit = fitted_mixtures(rows)
    assert max(map(abs, fit.errors)) < 0.12 < max(map(abs, fit.shipped))  # a prior draws the numbers to itself
    assert fit.rates.grouped < 0.75 < fit.rates.grouped_in_bits
    assert fit.rates.exchange < 0.6
    assert main(["nowhere.json"]) == 2
    assert "mixture_fit:" in capsys.readouterr().err


def test_published_mixtures_are_predicted() -> None:
    files = [str(DATA / name) for name in ("moe_runs.json", "moe_memory.json")]
    if not all(map(os.path.exists, files)):
        pytest.skip("the published runs are not here")
    steps = [prediction for prediction in predict_runs(runs_of(files[:1])) if prediction.error is not None]
    peaks = [prediction for prediction in predict_runs(runs_of(files[1:])) if prediction.memory_error is not None]
    assert len(steps) >= 65
    assert sum(abs(prediction.error or 0.0) for prediction in steps) / len(steps) < 0.15
    assert sum(abs(prediction.memory_error or 0.0) for prediction in peaks) / len(peaks) < 0.08
    assert all(prediction.fit != "no" for prediction in steps)
    assert len(mixtures_with_steps(files[:1])) == len(steps)
