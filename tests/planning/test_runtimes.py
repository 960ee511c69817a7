"""Plans for one runtime, and the best plan of every runtime.

A plan for a runtime is the best within what that runtime runs, and its export takes it. A row of the table of runtimes is what
`plan --for` that runtime gives; a row whose search ran out of time is marked.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.quantities import format_share, format_time

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.clock import count_the_clock
from tests.helpers.refusals import refused, stated
from tests.helpers.sizes import first_and_others
from trainplan.api import export_verbs
from trainplan.command import printing, render
from trainplan.planning.every_runtime import OWN, RuntimePlan, _row, by_runtime, compared
from trainplan.planning.result import PlanningResult, PlanningTime
from trainplan.planning.result_price import Price
from trainplan.screens.plan import screen
from trainplan.screens.runtimes import runtime_notes

REQUEST = {"model": "llama3-8b", "cluster": "h100:8x2", "batch": 64, "sequence": 4096}


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
@pytest.mark.parametrize("requested", first_and_others([{"pipeline": 2, "micro_batches": 8}, {}, {"memory": "32GiB"}]))
def test_the_best_plan_for_a_runtime_is_exported_to_it(runtime: str, requested: dict[str, object]) -> None:
    if RUNTIMES[runtime].one_stage:
        requested = {name: value for name, value in requested.items() if name not in ("pipeline", "micro_batches")}
    free, within = tp.plan(**REQUEST, **requested), tp.plan(**REQUEST, **requested, for_=runtime)
    assert within.plan is not None and free.plan is not None
    assert within.plan.predicted is not None and free.plan.predicted is not None
    assert within.plan.predicted.step_ns >= (free.plan.claim.bound_ns or 0)  # type: ignore[union-attr]
    assert within.plan.one_strategy is not None or len({s.levels for s in within.plan.strategies()}) == 1
    if runtime == "trainplan":  # which runs all that the default problem knows, and takes no files but the plan's own
        assert within.plan.units == free.plan.units and tp.check(within.plan).faults == ()
        return
    found = tp.export(within.plan, runtime)
    assert not any("more memory" in line for line in found.left_out if "stay whole" not in line)
    if runtime == "torchtitan":
        settings = tomllib.loads(found.files["torchtitan.toml"])
        parallel, training = settings["parallelism"], settings["training"]
        degrees = [parallel[f"{name}_degree"] for name in ("pipeline_parallel", "tensor_parallel", "data_parallel_replicate")]
        world = parallel["data_parallel_shard_degree"]
        for degree in degrees:
            world *= degree
        assert world == within.plan.world and training["mixed_precision_param"] == "bfloat16"
        assert ("module_fqns_per_model_part" in parallel) == (len(within.plan.stages) > 1)


def test_a_plan_that_fills_the_memory_is_exported_to_torchtitan() -> None:
    """Gradients are in float32 there, with which the plan without the runtime does not fit."""
    requested: dict[str, Any] = {"model": "qwen3-8b", "cluster": "h100:8", "batch": 64, "sequence": 4096, "gap": 1e-3}
    within = tp.plan(**requested, for_="torchtitan", comparisons=False)
    assert within.plan is not None and within.plan.precision.gradients == "float32" and within.plan.predicted is not None
    found = tp.export(within.plan, "torchtitan")
    assert not any("gradients" in line for line in found.left_out)
    assert found.settings["peak_bytes"] <= within.plan.memory_bytes
    assert tp.check(within.plan).faults == ()
    assert (
        tp.plan(**requested, for_="torchtitan", dtype="float32", comparisons=False).plan is not None
    )  # gradients are so already


def test_an_export_says_that_embedding_and_head_are_not_recomputed() -> None:
    requested: dict[str, Any] = {"model": "qwen3-8b", "cluster": "a100-16", "batch": 256, "sequence": 4096, "micro_batches": 8}
    plan = tp.plan(**requested, for_="deepspeed", comparisons=False).plan
    assert plan is not None and all(strategy.ckpt for strategy in plan.strategies())
    assert [line for line in tp.export(plan, "deepspeed").left_out if "embedding and head" in line]


def test_the_price_of_a_runtime_is_printed() -> None:
    done = call(
        "plan", "--model", "llama3-8b", "--cluster", "h100:8x1", "--batch", "16", "--sequence", "4096", "--for", "megatron",
        "--details",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (price,) = (line for line in done.stdout.splitlines() if line.startswith("price of --for megatron"))
    assert ("predicted" in price or "not known" in price) and "programs" not in price
    assert "price of --for megatron" in done.stdout and "--for megatron" in done.stdout.split("search space")[1]


@pytest.mark.parametrize(
    ("requested", "refusal"),
    [
        ({"for_": "megatron", "schedule": "gpipe"}, ("schedule", "gpipe", ("1f1b", "interleaved", "megatron"))),
        ({"for_": "megatron", "zero": "3"}, ("zero", 3, ("0,1", "megatron"))),
        ({"for_": "nemo"}, ("for", "nemo", ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate"))),
        ({"for_": "deepspeed", "pipeline": 2}, ("pipeline", 2, (1, "deepspeed"))),
        ({"for_": "accelerate", "tp": 2}, ("tp", 2, (1, "accelerate"))),
        (
            {"for_": "torchtitan", "model": "gpt2", "sequence": 1024},
            ("for", ("torchtitan", "gpt2"), ("megatron", "deepspeed", "torch")),
        ),
        ({"for_": "torchtitan", "model": "llama3.2-1b"}, ("for", ("torchtitan", "embedding"), ("megatron", "megatron-bridge"))),
        ({"for_": "accelerate", "zero": "1"}, ("zero", 1, ("0,2,3", "accelerate"))),
        ({"for_": "megatron", "host": "hidden"}, ("host", ("hidden", "megatron"), "--for trainplan")),
        ({"for_": "deepspeed", "host": "all,cpu"}, ("host", ("all,cpu", "deepspeed"), ("optimizer", "parameters", "hidden"))),
    ],
)
def test_what_a_runtime_does_not_run_is_refused(requested: dict[str, str], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        tp.plan(**{**REQUEST, **requested})


def test_the_nearest_plan_is_exported_instead_of_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one that the runtime takes, and no faster than the optimum that is refused; the refusal names it."""
    planned = tp.certify(
        tp.plan(model="gpt2-345m", dtype="float32", cluster="autopipe-3090-16", batch=16, gap=0.01, comparisons=False), 1e-6
    )
    assert planned.plan is not None and planned.plan.one_strategy is None
    nearest = tp.nearest_plan(planned.plan, "megatron", time_limit=None)
    assert nearest is not None and nearest.plan is not None and nearest.plan.one_strategy is not None
    assert nearest.step_ns >= (1 - 0.01) * planned.step_ns
    assert tp.nearest_plan(planned.plan, "nemo") is None
    assert tp.nearest_plan(planned.plan.changed(claim=None), "megatron") is None
    monkeypatch.setattr(export_verbs, "nearest_plan", lambda *_: nearest)  # however slow this machine is
    with refused("units[1].layout", problem="sdp2-tp2-zero2", fix=(format_time(nearest.step_ns), "--nearest")):
        tp.export(planned.plan, "megatron")
    assert tp.export(planned.plan, "megatron", nearest=True).files == tp.export(nearest.plan, "megatron").files


@pytest.mark.parametrize("runtime", ["accelerate", "deepspeed"])
def test_plans_for_a_runtime_fit_as_the_runtime_holds_them(runtime: str) -> None:
    """By its programs alone the fastest plan fits; what transformers' modules keep takes 93 GiB of 74."""
    made = tp.plan(model="llama3-8b", cluster="h100:8", batch=64, sequence=4096, for_=runtime, comparisons=False)
    assert made.plan is not None and made.plan.predicted is not None and made.judged is not None
    assert max(made.plan.predicted.peak_bytes) <= made.plan.memory_bytes
    assert made.plan.predicted.software and max(made.judged.peak_bytes) <= made.plan.memory_bytes


SMALL_REQUEST: dict[str, Any] = {"model": "qwen3-0.6b", "cluster": "h100:4", "batch": 8, "sequence": 4096}
LIMITLESS = 1e6


@cache
def answer(**more: Any) -> PlanningResult:
    return tp.plan(**SMALL_REQUEST, **more)


@cache
def rows() -> dict[str, RuntimePlan]:
    return {row.runtime: row for row in by_runtime(answer(), LIMITLESS)}


def printed(table: tuple[RuntimePlan, ...], seconds: float, width: int = 80) -> str:
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "out", Console(file=text, width=width, highlight=False, soft_wrap=True, emoji=False))
        patch.setenv("COLUMNS", str(width))
        render.runtimes(table, seconds)
    return text.getvalue()


@pytest.mark.parametrize("runtime", [entry for entry in (*compared(), OWN) if entry != "torchtitan"])
def test_each_row_is_what_planning_for_the_runtime_gives(runtime: str) -> None:
    row, alone = rows()[runtime], answer(for_=runtime)
    assert alone.plan is not None and alone.plan.predicted is not None
    assert row.step_ns == alone.step_ns
    assert row.peak_bytes == alone.plan.predicted.most_bytes
    assert row.stopped is None and row.gap == alone.plan.claim.gap  # type: ignore[union-attr]


def test_the_row_of_trainplan_is_the_plan_itself() -> None:
    assert rows()[OWN].answer is answer()


def test_the_best_in_any_runtime_of_a_screen_is_the_plan_with_the_gradients_of_its_runtime() -> None:
    """In the same digits."""
    best = tp.plan(**SMALL_REQUEST, gradients="float32", comparisons=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainplan.planning.constraint_costs.RUNTIME_SECONDS", LIMITLESS)
        alone = tp.plan(**SMALL_REQUEST, for_="megatron")
    assert best.step_ns is not None and alone.prices[0].predicted_ns == best.step_ns
    reported = next(text for _, lines in screen(alone) for pieces in lines for text in pieces if "any runtime" in text)
    assert f"in any runtime (float32 gradients) {format_time(best.step_ns)} or less" in reported


def test_the_price_of_a_runtime_is_of_predicted_steps() -> None:
    """Of the numbers that the short screen has, and of no objective."""
    price = Price("--for megatron", None, 945_000_000)
    assert (
        price.predicted_text(10**9)
        == f"{format_share(0.055)}: {format_time(945_000_000)} a step or less without it, as predicted"
    )
    assert "nothing faster is known" in price.predicted_text(945_000_000)
    assert Price("--for megatron", None).predicted_text(10**9) == "not known in the time"


def test_rows_are_in_the_order_of_their_steps_and_those_without_a_plan_last() -> None:
    steps = [row.step_ns for row in rows().values()]
    known = [step for step in steps if step is not None]
    assert known == sorted(known) and steps[len(known) :] == [None]


def test_a_runtime_that_does_not_have_the_model_says_what_it_lacks() -> None:
    row = rows()["torchtitan"]
    assert row.answer is None and row.why == "no heads tied to the embedding" and row.stopped is None
    text = " ".join(printed(tuple(rows().values()), 20.0).split())
    assert "torchtitan: no heads tied to the embedding" in text and "open" not in text


def test_without_time_all_other_rows_are_open() -> None:
    """And the screen says how much time there was, and how to give more."""
    table = by_runtime(answer(), 0.0)
    assert [row.runtime for row in table if row.found] == [OWN]
    assert {row.runtime for row in table if row.stopped == "time limit"} == set(compared()) - {"torchtitan"}
    text = " ".join(printed(table, 0.0).split())
    assert "open: Megatron (not searched)" in text and "--time-limit" in text
    assert "no time was left for other runtimes" in text and "0 s were up" not in text


def test_rows_whose_turn_comes_too_late_are_open() -> None:
    """By a clock that stands still for the first two searches and then is past the limit."""
    looks = iter([0.0, 0.0, 0.0])
    table = {row.runtime: row for row in by_runtime(answer(), LIMITLESS, clock=lambda: next(looks, 2 * LIMITLESS))}
    assert [name for name in compared() if table[name].stopped] == ["accelerate", "torch"]
    assert table["megatron"].step_ns == rows()["megatron"].step_ns


def test_a_row_that_had_too_little_gets_the_time_that_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = list[tuple[str, float]]()

    def searched(name: str, best: PlanningResult, seconds: float, progress: Any) -> RuntimePlan:
        requested.append((name, seconds))
        done = name != "megatron" or seconds > 3
        return RuntimePlan(name, best, stopped=None if done else "time limit", seconds=seconds)

    monkeypatch.setattr("trainplan.planning.every_runtime._row", searched)
    table = {row.runtime: row for row in by_runtime(answer(), 8.0, clock=lambda: 0.0)}
    assert requested == [("megatron", 2.0), ("deepspeed", 8 / 3), ("accelerate", 4.0), ("torch", 8.0), ("megatron", 8.0)]
    assert table["megatron"].stopped is None


def test_after_an_interrupt_nothing_more_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known results are shown, and the rest is reported as interrupted."""
    best, tried = answer(), list[str]()

    def interrupted(request: Any, *_: Any, **__: Any) -> PlanningResult:
        tried.append(request.options["for_"])
        if len(tried) == 2:
            raise KeyboardInterrupt
        return best

    monkeypatch.setattr("trainplan.planning.every_runtime.planned", interrupted)
    table = by_runtime(best, LIMITLESS)
    assert tried == ["megatron", "deepspeed"]
    assert {row.runtime for row in table if row.found} == {OWN, "megatron"}
    assert {row.runtime for row in table if row.stopped == "interrupt"} == {"deepspeed", "accelerate", "torch"}
    assert printed(table, 20.0).rstrip().endswith("interrupted")


@pytest.mark.parametrize(
    ("spent", "stopped"), [(PlanningTime(1.0, 0.5, 1), None), (PlanningTime(4.0, 0.5, 1), "time limit")], ids=str
)
def test_planning_that_had_hardly_time_left_is_open(
    spent: PlanningTime, stopped: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its search may be done, and yet simulations of other plans may not have been."""
    best = answer()
    monkeypatch.setattr("trainplan.planning.every_runtime.planned", lambda *_, **__: replace(best, spent=spent))
    assert _row("torch", best, 5.0, None).stopped == stopped


def test_a_search_that_time_ended_says_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    best = answer()
    count_the_clock(monkeypatch, 1.0)
    table = by_runtime(best, 3.0, clock=lambda: 0.0)
    ended = next(row for row in table if row.found and row.stopped == "time limit")
    assert ended.gap is None or ended.gap > 0
    text = printed(table, 3.0)
    line = next(line for line in text.splitlines() if f" {ended.name} " in line)
    assert "open" in line and ended.name in " ".join(runtime_notes(table, 3.0)[-1])


@pytest.mark.parametrize("more", [{"for_": "torch"}, {"like": "galvatron-bmw"}, {"cluster": "cpu-4"}], ids=str)
def test_there_is_no_table_of_a_request_with_a_runtime_or_a_preset_or_of_other_devices(more: dict[str, Any]) -> None:
    """CPUs have no data sheet, by which runtimes are predicted."""
    assert (
        by_runtime(tp.plan(**{**SMALL_REQUEST, "model": "gpt2", "sequence": 64, "comparisons": False, **more}), LIMITLESS) == ()
    )


def test_what_is_fixed_is_fixed_in_all_rows() -> None:
    """And a runtime that does not have it says so."""
    table = {row.runtime: row for row in by_runtime(answer(tp=2), LIMITLESS)}
    for name in (OWN, "megatron", "torch"):
        made = table[name].answer
        assert made is not None and made.plan is not None
        assert {unit.strategy.degree("tp") for unit in made.plan.units} == {2}
    for name in ("deepspeed", "accelerate"):
        assert table[name].answer is None and stated("--tp", table[name].why) and stated("2", table[name].why)


def test_the_command_prints_the_table_below_the_screen_and_has_it_in_json(tmp_path: Path) -> None:
    words = ("plan", "qwen3-0.6b", "h100:4", "--batch", "8", "--seq", "4k", "--time-limit", "100000")
    shown = call(*words).stdout
    assert shown.index("SPEED") < shown.index("RUNTIMES") < shown.index("Megatron  ")
    speed = next(line for line in shown.splitlines() if line.startswith("SPEED")).split(" a step")[0].split(maxsplit=1)[1]
    assert speed in next(line for line in shown.split("RUNTIMES")[1].splitlines() if " trainplan " in line)
    table = json.loads(call(*words, "--json").stdout)["runtimes"]
    assert [entry["step_ns"] for entry in table] == [row.step_ns for row in rows().values()]
    assert "RUNTIMES" not in call(*words, "--for", "torch").stdout
