"""Words of screens that a training engineer reads: what a plan recomputes, which layouts are as fast, whether a plan fits, and
by what plans of unlike numbers of GPUs compare."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from trainplan.formulations.plan.plan import Plan

import trainplan as tp
from tests.helpers.calls import call
from trainplan.command import printing, render_plans
from trainplan.plan_words import run_words
from trainplan.planning import every_runtime
from trainplan.planning.result import PlanningResult
from trainplan.screens.others import other_plans
from trainplan.screens.plan import screen
from trainplan.validation.fitting import fit_of, fit_words

REQUEST: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "h100:8", "batch": 64, "sequence": 2048, "comparisons": False}


@cache
def answer(**more: Any) -> PlanningResult:
    return tp.plan(**REQUEST, **more, time_limit=20)


def plan() -> Plan:
    made = answer(for_="megatron").plan
    assert made is not None
    return made


def recomputed(plan: Plan, *, layers: range, kinds: tuple[str, ...], modules: tuple[str, ...] = ()) -> str:
    """The words on recomputation of a copy of the plan that recomputes these kinds of sub-layers of these layers, by index."""
    units = []
    for described, unit in zip(plan.planned_model().units, plan.units, strict=True):
        again = described.kind in kinds and (described.layer - 1 in layers or described.kind in ("embedding", "head"))
        some = modules if again and described.kind == "attention" else ()
        units.append(unit.laid_out(replace(unit.strategy, ckpt=again and not modules, modules=some)))  # type: ignore[arg-type]
    return run_words(plan.changed(units=units, predicted=None, claim=None))[-1]


def test_what_is_recomputed_is_stated_in_layers() -> None:
    """The model has 16 layers of two sub-layers, an embedding and a head, of which a runtime recomputes neither."""
    theirs, inner, all_kinds = plan(), ("attention", "ffn"), ("attention", "ffn", "embedding", "head")
    own = theirs.changed(runs_by=None)
    every, some = range(16), range(5)
    assert recomputed(theirs, layers=every, kinds=inner) == "all 16 layers recomputed"
    assert recomputed(theirs, layers=every, kinds=all_kinds) == "all 16 layers recomputed"
    assert recomputed(theirs, layers=some, kinds=("ffn",)) == "5 of 16 layers recomputed"
    assert recomputed(own, layers=every, kinds=all_kinds) == "all 16 layers, and embedding and head recomputed"
    assert recomputed(own, layers=some, kinds=inner) == "5 of 16 layers recomputed"
    assert recomputed(own, layers=some, kinds=("ffn",)) == "5 ffn sub-layers recomputed"
    assert recomputed(own, layers=every, kinds=("head",)) == "head recomputed"
    for each in (own, theirs):
        words = recomputed(each, layers=every, kinds=inner, modules=("attention", "norms"))
        assert words == "attention and norms of all 16 layers recomputed"
        assert recomputed(each, layers=range(0), kinds=()) == "nothing recomputed"


def test_an_export_of_a_plan_recomputes_what_the_plan_states(tmp_path: Path) -> None:
    """Also if the plan marks embedding and head, which no runtime recomputes."""
    units = [unit.laid_out(replace(unit.strategy, ckpt=True, modules=())) for unit in plan().units]
    marked = plan().changed(units=units, predicted=None, claim=None)
    for name, text in tp.export(marked, "megatron").files.items():
        (tmp_path / name).write_text(text)
    run = tp.import_run(tmp_path / "launch.sh", cluster="h100:8", search=False)
    assert run_words(run.plan)[-1] == run_words(marked)[-1] == "all 16 layers recomputed"


def test_simulate_states_whether_a_plan_fits_as_plan_does(tmp_path: Path) -> None:
    probability = answer(for_="megatron").fit_probability
    assert probability is not None
    simulated = tp.simulate(plan())
    assert simulated.fit_probability == probability
    assert simulated.to_dict()["fit"] == fit_of(probability)
    (tmp_path / "plan.json").write_text(plan().model_dump_json())
    fits = next(line for line in call("simulate", tmp_path / "plan.json").stdout.splitlines() if line.startswith("fits"))
    assert fits.split(maxsplit=1)[1] == fit_words(probability)
    most = max(simulated.peak_bytes)
    for limit, expected in ((most // 2, "no"), (most, "tight"), (10 * most, "yes")):
        other = replace(simulated, plan=plan().changed(memory_bytes=limit))
        assert other.fit_probability is not None and fit_words(other.fit_probability).startswith(expected)


def test_plans_on_unlike_numbers_of_devices_are_judged_by_the_throughput_of_a_device() -> None:
    """The plan with the shorter step has the lower throughput of a device, and comes second."""
    few, many = plan(), tp.plan(**REQUEST | {"cluster": "h100:8x2"}, for_="megatron", time_limit=20).plan
    assert many is not None and few.predicted is not None and many.predicted is not None
    slow = many.changed(predicted=many.predicted.changed(step_ns=round(0.6 * few.predicted.step_ns)))
    rows = tp.compare_plans([slow, few])
    assert [row["devices"] for row in rows] == [8, 16]
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "out", Console(file=text, width=80, highlight=False, soft_wrap=True, emoji=False))
        patch.setenv("COLUMNS", "80")
        render_plans.side_by_side(rows)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("unlike numbers of GPUs: judged by tokens/s a GPU" in line for line in lines)
    assert any("-16.67 %" in line for line in lines), "1 / 1.2 of the throughput of a device"
    alike = tp.compare_plans([few, few.changed(predicted=few.predicted.changed(step_ns=few.predicted.step_ns - 1))])
    assert alike[0]["step_ns"] < alike[1]["step_ns"]


def unlike() -> PlanningResult:
    """An answer of unlike layouts, which its request allows, with the best plan of one layout next to it."""
    made = answer()
    assert made.plan is not None
    first = made.plan.units[0]
    other = replace(first.strategy, zero=1 if first.strategy.zero_stage != 1 else 3)
    changed = made.plan.changed(units=[first.laid_out(other), *made.plan.units[1:]])
    request = replace(made.request, options={**made.request.options, "layouts": "unit"})
    return replace(made, request=request, plan=changed, uniform=made)


def test_a_plan_of_unlike_layouts_names_one_layout_that_is_as_fast_and_what_runs_it() -> None:
    changed = unlike().plan
    assert changed is not None and run_words(changed)[0] == "unlike layouts"
    rows = dict(screen(unlike(), Path("plan.json")))
    assert "one layout for all" in rows["EQUAL"][0][0] and "as fast as this" in rows["EQUAL"][0][0]
    for_own = unlike()
    options = {**for_own.request.options, "for": "trainplan"}
    for_own = replace(for_own, request=replace(for_own.request, options=options))
    for each in (unlike(), for_own):
        assert dict(screen(each, Path("plan.json")))["NEXT"][0] == ["trainplan run plan.json --steps 3"]
    alike = replace(unlike(), plan=answer().plan, uniform=None)
    assert "unlike layouts (--layouts unit): none is" in other_plans(alike).why_not[0]


def test_runtimes_of_one_layout_say_so_in_words_of_their_own() -> None:
    for name in ("megatron", "deepspeed", "torch"):
        why = every_runtime._lacks(name, unlike())
        assert why is not None and why.startswith("one layout for all sub-layers only") and "--for" not in why


def test_runtimes_say_in_few_words_which_option_they_have_no_plans_with() -> None:
    made = answer()
    cases = {"host": "optimizer", "tp": 2, "zero": "0,1", "schedule": "gpipe", "recompute_first": True}
    found = {}
    for option, value in cases.items():
        request = replace(made.request, options={**made.request.options, option: value})
        found[option] = every_runtime._lacks("accelerate", replace(made, request=request))
    assert found == {
        "host": "no plans with --host optimizer",
        "tp": "no plans with --tp 2",
        "zero": None,
        "schedule": "no plans with --schedule gpipe",
        "recompute_first": "no plans with --recompute-first",
    }


def test_lines_are_wrapped_at_the_width_that_is_stated() -> None:
    for width in (40, 80):
        text = StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(printing, "out", Console(file=text, width=width, soft_wrap=True))
            patch.setenv("COLUMNS", str(width))
            printing.pairs([("verdict", "no plan of the problem " * 12), ("step", "7.25 GiB " * 30)])
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= width and not any(line.strip().startswith("GiB") for line in lines)
        assert all(line.startswith(("verdict  ", "step     ", "         ")) for line in lines)
