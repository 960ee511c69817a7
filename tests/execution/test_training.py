"""Training on tokens: the order of samples, settings of the optimizer, metrics, evaluation, and their agreement with one
process."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.training.batches import Batches, permuted
from trainplan.execution.training.optimizer import Optimizer
from trainplan.execution.training.settings import Training
from trainplan.execution.training.single_process import Reference
from trainplan.execution.training.tokens import token_file
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.precision import MASTERS

import trainplan as tp
from benchmarks.lowered import WORLDS, lowered_plan
from tests.helpers.plans import BERT, DROPPING, GPT2, UNTIED, plan_of
from tests.helpers.refusals import refused
from tests.helpers.texts import token_bytes

torch = pytest.importorskip("torch")

UNITS = len(GPT2.units)
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-2,
    "rate_schedule": "cosine",
    "warmup": 2,
    "least_rate": 1e-3,
    "betas": (0.9, 0.95),
    "weight_decay": 0.1,
    "clip": 0.5,
}


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 2**31 - 1))
def test_samples_are_permuted(count: int, epoch: int, seed: int) -> None:
    everything = permuted(np.arange(count), count, seed, epoch)
    assert sorted(everything.tolist()) == list(range(count))
    some = np.random.default_rng(seed).integers(0, count, 5)
    assert permuted(some, count, seed, epoch).tolist() == everything[some].tolist()


def test_the_order_is_another_one_in_each_epoch_and_for_each_seed() -> None:
    orders = [permuted(np.arange(1000), 1000, seed, epoch) for seed in range(3) for epoch in range(3)]
    for index, order in enumerate(orders):
        assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.15
        assert all((order == other).mean() < 0.02 for other in orders[:index])
    assert permuted(np.array([0, 10**12]), 10**12 + 1, 0, 0).max() <= 10**12  # of any number of samples


def test_batches_are_parts_of_one_row_of_samples(tmp_path: Path) -> None:
    file = token_bytes(tmp_path / "t.bin", GPT2)
    eight = Batches(GPT2, 8, 3, file)
    every = torch.cat([eight.whole(step) for step in range(70)])
    four = Batches(GPT2, 4, 3, file, first=eight.drawn(2) - 2 * 4)  # as a run that goes on after two steps of eight
    assert four.whole(2).tolist() == every[16:20].tolist()
    assert eight.rows(5, [1, 6]).tolist() == every[[41, 46]].tolist()
    windows = {tuple(row.tolist()) for row in every[: file.windows]}
    tokens = np.fromfile(tmp_path / "t.bin", "<u2")
    steps = range(0, len(tokens) - GPT2.tokens, GPT2.tokens)
    assert windows == {tuple(tokens[start : start + GPT2.tokens + 1].tolist()) for start in steps}


def test_rates_are_those_of_torch() -> None:
    for name, other in (("cosine", "CosineAnnealingLR"), ("linear", "LinearLR")):
        settings = Optimizer(rate=0.4, schedule=name, warmup=3, steps=13, least_rate=0.1)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
        fields = {"T_max": 10, "eta_min": 0.1}
        if name == "linear":
            fields = {"start_factor": 1.0, "end_factor": 0.25, "total_iters": 10}
        schedule = getattr(torch.optim.lr_scheduler, other)(optimizer, **fields)
        assert [settings.rate_at(step) for step in range(3)] == pytest.approx([0.4 / 3, 0.8 / 3, 0.4])
        for step in range(3, 20):
            expected = 0.1 if step > 13 else optimizer.param_groups[0]["lr"]
            assert settings.rate_at(step) == pytest.approx(expected, rel=1e-12)
            optimizer.step()
            schedule.step()


def test_one_process_steps_as_torch_does() -> None:
    """Cut, decaying matrices alone, at the rate of its step: against torch's own clipping and optimizer."""
    settings = Optimizer(rate=1e-2, warmup=2, weight_decay=0.3, clip=0.5, betas=(0.8, 0.9))
    one = Reference(UNTIED, 0, settings=settings)
    values = [{name: value.detach().clone() for name, value in unit.items()} for unit in one.parameters]
    tokens = Batches(UNTIED, 4, 0).whole(0)
    one.gradients(tokens)
    flat = [(name, value) for unit in values for name, value in unit.items()]
    for (_, value), trained in zip(flat, (v for unit in one.parameters for v in unit.values()), strict=True):
        value.requires_grad_().grad = trained.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_([value for _, value in flat], 0.5)
    norms = [value for name, value in flat if value.dim() == 1 or "bias" in name]
    matrices = [value for name, value in flat if not (value.dim() == 1 or "bias" in name)]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": norms, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=5e-3, betas=(0.8, 0.9)).step()
    one.step(tokens)
    assert one.gradient_norm == pytest.approx(float(norm), rel=1e-12) and one.gradient_norm > 0.5
    for unit, other in zip(one.parameters, values, strict=True):
        for name, value in unit.items():
            assert float((value - other[name]).detach().abs().max()) < 1e-12, name


def test_a_plan_trains_as_one_process_does(tmp_path: Path) -> None:
    file = token_bytes(tmp_path / "t.bin", GPT2)
    strategies = ["tp2", "tp2", "tp2-sp", "dp2", "sdp2", "dp2", "tp2-sp", "tp2"]  # tied ends on two stages
    plan = plan_of(GPT2, strategies, 4, 8, 2, [3])
    fields = {**SETTINGS, "evaluate": file.path, "evaluate_every": 2, "evaluate_batches": 3, "metrics": tmp_path / "metrics"}
    report = tp.run(plan, steps=3, data=file.path, compare=True, **fields)
    for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
        assert difference is not None and difference < 1e-12
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    settings = Optimizer(1e-2, "cosine", 2, 3, 1e-3, (0.9, 0.95), 0.1, 0.5)
    one, evaluations = Reference(GPT2, 0, settings=settings), {}
    for step, line in enumerate(lines):
        loss = one.step(Batches(GPT2, 8, 0, file).whole(step))
        assert (line["step"], line["learning_rate"]) == (step + 1, settings.rate_at(step))
        assert [line["loss"], line["grad_norm"]] == pytest.approx([loss, one.gradient_norm], rel=1e-12)
        assert line["tokens_per_second"] == pytest.approx(8 * GPT2.tokens / line["seconds"]) and line["memory_bytes"] > 2**26
        if step:
            evaluations[step + 1] = _loss_in_order(one, file.path, 24)
    assert report.evaluations == pytest.approx(evaluations, rel=1e-12)
    assert [line.get("evaluation_loss") for line in lines] == [None, *report.evaluations.values()]


def _loss_in_order(one: Reference, path: str, samples: int) -> float:
    tokens = np.fromfile(path, "<u2").astype(np.int64)
    rows = torch.from_numpy(np.stack([tokens[i * 12 : i * 12 + 13] for i in range(samples)]))
    with torch.no_grad():
        logits = one.logits(rows[:, :-1])
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_random_plans_train_as_one_process_does(world: int, tmp_path: Path) -> None:
    """Runs of any mix of dp, sdp, tp and stages: clipped by the global norm, decaying in groups, on other samples in each
    step."""
    rng, plans = random.Random(world), list[Plan]()
    while len(plans) < 15:
        plan = lowered_plan(rng, world)
        plans += [plan] if plan.batch.global_samples <= 16 else []
    for plan in plans:
        model = plan.planned_model()
        file = token_bytes(tmp_path / "t.bin", model)
        optimizer = Optimizer(rate=1e-2, schedule="linear", warmup=1, steps=4, weight_decay=0.1, clip=0.3)
        training = Training(file, optimizer)
        (report,) = run_plans([plan], steps=3, runtime="torch", training=training)
        for difference in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert difference is not None and difference < 1e-10, plan


@pytest.mark.long
def test_dropout_is_that_of_one_process_and_not_of_evaluation(tmp_path: Path) -> None:
    dropping = DROPPING[0]
    file = token_bytes(tmp_path / "t.bin", dropping)
    units = len(dropping.units)
    plan = plan_of(dropping, ["tp2-sp" if index % 2 else "sdp2" for index in range(units)], 2, 4, 2)
    fields = {"evaluate": file.path, "evaluate_batches": 1, "learning_rate": 0.0}  # so that all steps are of the first values
    report = tp.run(plan, steps=2, data=file.path, compare=True, **fields)
    assert report.loss_difference is not None and report.loss_difference < 1e-12
    quiet = Reference(dropping, 0)
    assert report.evaluations[2] == pytest.approx(_loss_in_order(quiet, file.path, 4), rel=1e-12)


@pytest.mark.long
def test_half_precision_with_masters_is_clipped(tmp_path: Path) -> None:
    file = token_bytes(tmp_path / "t.bin", BERT)
    half = BERT.in_dtype("bfloat16")
    plan = plan_of(half, ["dp2", *["tp2"] * (len(half.units) - 2), "sdp2"], 2).changed(precision=MASTERS)
    report = tp.run(plan, steps=3, data=file.path, clip=0.1, learning_rate=1e-3, metrics=tmp_path / "m")
    wide = plan_of(BERT, ["single"] * len(BERT.units), 1)
    again = tp.run(wide, steps=3, data=file.path, clip=0.1, learning_rate=1e-3, metrics=tmp_path / "wide")
    assert report.losses == pytest.approx(again.losses, rel=5e-3)
    norms = [[json.loads(line)["grad_norm"] for line in (tmp_path / name).read_text().splitlines()] for name in ("m", "wide")]
    assert norms[0] == pytest.approx(norms[1], rel=2e-2) and norms[0] != norms[1]


@pytest.mark.long
def test_a_run_goes_on_after_the_samples_that_it_took(tmp_path: Path) -> None:
    file, kept, metrics = token_bytes(tmp_path / "t.bin", UNTIED), tmp_path / "kept", tmp_path / "m"
    eight = plan_of(UNTIED, ["dp2"] * len(UNTIED.units), 2, 8)
    four = plan_of(UNTIED, ["single"] * len(UNTIED.units), 1, 4)
    fields = {"data": file.path, "metrics": metrics, "rate_steps": 9}
    tp.run(eight, steps=2, checkpoint=kept, **fields)
    with metrics.open("a") as lines:
        lines.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')  # as a run leaves that was killed after its checkpoint
    assert json.loads((kept / "step-00000002" / "run.json").read_text())["position"] == 16
    report = tp.run(four, steps=4, resume=kept, checkpoint=kept, **fields)
    assert json.loads((kept / "step-00000004" / "run.json").read_text())["position"] == 24
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [1, 2, 3, 4]
    one = Reference(UNTIED, 0)
    for step in range(2):
        one.step(Batches(UNTIED, 8, 0, file).whole(step))
    rest = Batches(UNTIED, 4, 0, file, first=8)
    assert report.losses == pytest.approx([one.step(rest.whole(step)) for step in (2, 3)], rel=1e-12)
    with refused("data", where=kept / "step-00000004"):
        tp.run(four, steps=5, resume=kept, data=token_bytes(tmp_path / "other.bin", UNTIED, 4000).path)


def test_files_of_tokens_say_what_is_wrong(tmp_path: Path) -> None:
    plan, path = plan_of(UNTIED, ["single"] * len(UNTIED.units), 1), tmp_path / "t.bin"
    for content, wrong in (
        (b"\0", ("", (1, "uint16"))),
        (b"\0" * 20, ("", (10, 13))),
    ):
        path.write_bytes(content)
        with refused(*wrong):
            tp.run(plan, data=path)
    with refused("data", problem=tmp_path / "none.bin"):
        tp.run(plan, data=tmp_path / "none.bin")
    np.full(100, UNTIED.vocabulary, "<u2").tofile(path)
    with refused(re.compile(r"\[\d+\]"), problem=(UNTIED.vocabulary, 0), fix=UNTIED.vocabulary):
        token_file(path, "--data", UNTIED.tokens, UNTIED.vocabulary).read(np.array([1]))
    for name, value, wrong in (
        ("clip", 0.0, ("clip", 0, 0)),
        ("learning_rate", float("nan"), ("learning_rate", "nan")),
        ("rate_schedule", "cosin", ("rate_schedule", "cosin", "cosine")),
        ("evaluate_every", 2, ("evaluate_every", 2, "--evaluate")),
        ("least_rate", 1.0, ("least_rate", (1, "0.001"))),
        ("step_timeout", 0.1, ("step_timeout", "0.1", 1)),
    ):
        with refused(*wrong):
            tp.run(plan, **{name: value})
    with refused("clip", problem="--by program", fix="--by torch"):
        tp.run(plan, clip=1.0, by="program")
    with refused("evaluate_every", problem=0, fix=1):
        tp.run(plan, evaluate=path, evaluate_every=0)


def test_texts_become_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "texts").mkdir()
    texts = {"a.txt": "plain words\n", "b.md": "größer\n"}
    for name, text in texts.items():
        (tmp_path / "texts" / name).write_text(text, encoding="utf-8")
    about = tp.tokenize([tmp_path / "texts"], tmp_path / "bytes.bin")
    ids = np.fromfile(tmp_path / "bytes.bin", "<u2").tolist()
    assert ids == [*texts["a.txt"].encode(), 256, *texts["b.md"].encode(), 256]
    assert (about.vocabulary, about.dtype, about.tokens) == (257, "uint16", len(ids))
    with refused("vocabulary", where=tmp_path / "bytes.bin.json", problem=(257, UNTIED.vocabulary)):
        tp.run(plan_of(UNTIED, ["single"] * len(UNTIED.units), 1), data=tmp_path / "bytes.bin")
    words = {"plain": 0, "words": 1, "größer": 2, "</s>": 3, "?": 70000}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    about = tp.tokenize([tmp_path / "texts" / name for name in texts], tmp_path / "words.bin", tokenizer=tmp_path)
    assert about.dtype == "uint32" and np.fromfile(tmp_path / "words.bin", "<u4").tolist() == [0, 1, 3, 2, 3]
