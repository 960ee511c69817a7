"""Results in interpreters and notebooks: one short line, tables without colours, frames; and what is saved."""

from __future__ import annotations

import json
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.instances import random_instance
from tests.helpers.refusals import refused
from trainplan.planning.result import PlanningResult
from trainplan.validation.rows import SHIPPED_RUNS

REQUEST: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "memory": "2GiB"}
LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 "
    "--bf16 --vocab-size 32000"
)
LONGEST = 300


@cache
def plan(**choices: Any) -> PlanningResult:
    return tp.plan(**REQUEST, comparisons=False, **choices)


@cache
def judged(search: bool = False) -> Any:
    return tp.import_run(line=LAUNCH, cluster="h100:8", search=search, time_limit=5)


def results() -> dict[str, Any]:
    """One result of every kind that public calls give, but for texts, dicts and pictures; and what hangs on them."""
    made, piped, instance = plan(), plan(pipeline=2, micro_batches=4), random_instance(3)
    explained = tp.certify(made, 2.0)
    simulated, predictions = tp.simulate(piped.plan), tp.validate(SHIPPED_RUNS)
    frontier = tp.frontier(instance, [instance.memory_bytes], ["exact"])
    exported = tp.export(judged().plan, "megatron")
    return {
        **{f"plan.{name}": getattr(made, name) for name in ("plan", "judged", "performance", "request", "answer", "preset")},
        **{f"plan.plan.{name}": getattr(made.plan, name) for name in ("predicted", "claim")},
        "plan": made,
        "result": made.result,
        "instance": made.instance,
        "model": made.request.model,
        "cluster": made.request.cluster,
        "certify": explained,
        "check": tp.check(explained.plan),
        "check of a solution": tp.check(instance, tp.solve(instance)),
        "explain": tp.explain(explained.plan, time_limit=1),
        "differences": tp.differences(made.plan, piped.plan),
        "compare_plans": tp.compare_plans([made.plan, piped.plan]),
        "plans": tp.plans(["joint", "amp"], **REQUEST),
        "solve": tp.solve(instance),
        "build": instance,
        "compare": tp.compare(instance, ["exact"]),
        "frontier": frontier,
        "point": frontier[0],
        "methods": tp.methods(),
        "method": tp.methods()[0],
        "simulate": simulated,
        "timeline": simulated.timeline,
        "profile": tp.profile(model="gpt2", cluster="cpu-4", sequence=64),
        "import_run": judged(),
        "import_run.judged": judged().judged,
        "configuration": judged().configuration,
        "export": exported,
        "validate": predictions,
        "prediction": predictions[0],
    }


def test_every_result_is_one_short_line() -> None:
    for name, result in results().items():
        text = repr(result)
        assert len(text) < LONGEST and "\n" not in text, (name, len(text), text[:LONGEST])
        assert type(result).__name__ in text or text.startswith("<"), name


def test_lines_of_plans_and_runs_say_what_counts() -> None:
    assert repr(plan()) == "<PlanningResult gpt2 on cpu-4, like joint: 4.094 s a step, optimal>"
    text = repr(judged())
    assert text.startswith("<JudgedRun megatron ") and " a step, peak " in text and " on 8 devices: " in text


class Cells(HTMLParser):
    """The texts of a table's cells, row by row, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= set(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_notebook_shows_the_screen_of_a_plan() -> None:
    shown = Cells(plan(pipeline=2, micro_batches=4)._repr_html_())
    labels = [row[0] for row in shown.rows]
    assert [label for label in labels if label != "STAGES"][:3] == ["FITS", "RUN", "SPEED"] and labels[-1] == "NEXT"
    run = dict(map(tuple, shown.rows))["RUN"]  # type: ignore[arg-type]
    assert "PP2" in run and "4 micro-batches" in run


def test_tables_of_notebooks_have_no_colours_of_their_own() -> None:
    """So that they are read on a dark ground as on a light one."""
    for entry in (plan(), plan().judged, judged(), tp.methods()):
        shown = Cells(entry._repr_html_())
        assert shown.rows and shown.attributes == {("style", "text-align: left")}


def test_a_saved_plan_is_the_file_of_the_command(tmp_path: Path) -> None:
    saved, written = plan().save(tmp_path / "saved.json"), tmp_path / "written.json"
    words = [word for name, value in REQUEST.items() for word in (f"--{name}", str(value))]
    assert call("plan", *words, "-o", str(written)).returncode == 0
    one, other = (json.loads(path.read_text()) for path in (saved, written))
    assert one["claim"]["evidence"]["bound_ns"] == other["claim"]["evidence"]["bound_ns"]
    assert {**one, "claim": None} == {**other, "claim": None}
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_what_cannot_be_saved_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with refused("", "No such file"):
        plan().save(tmp_path / "missing" / "plan.json")
    nothing = tp.plan(**{**REQUEST, "memory": "64MiB"}, comparisons=False)
    with refused("", "infeasible", "plan"):
        nothing.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_frames_of_plans_are_one_table() -> None:
    nothing = tp.plan(**{**REQUEST, "memory": "64MiB"}, comparisons=False)
    table = pd.concat([entry.frame() for entry in (plan(), plan(pipeline=2, micro_batches=4), nothing)], ignore_index=True)
    assert list(table["status"]) == ["optimal", "optimal", "infeasible"]
    assert list(table["stages"])[:2] == [1, 2] and pd.isna(table["step_ns"][2])
    assert table["step_ns"][0] == plan().step_ns and set(table["model"]) == {"gpt2"}


def test_a_frame_of_units_has_all_of_them_once() -> None:
    piped = plan(pipeline=2, micro_batches=4)
    frame = piped.frame(units=True)
    assert piped.plan is not None
    assert frame["count"].sum() == len(piped.plan.units) and list(frame["stage"].unique()) == [0, 1]


def test_a_judged_run_has_a_row_for_each_plan() -> None:
    found = judged(search=True)
    frame = found.frame()
    assert frame["plan"][0] == "what runs" and frame["step_ns"][0] == found.step_ns and frame["saves"][0] == 0
    assert len(frame) == 1 + 1 + len(found.changes) and frame["plan"][1] == "best for megatron"
    assert list(frame["saves"][2:]) == [change.share for change in found.changes]
    assert len(Cells(found._repr_html_()).rows) == 1 + len(frame)


def test_frames_of_comparisons_name_the_instance() -> None:
    instance = random_instance(3)
    assert set(tp.compare(instance, ["exact"]).frame()["instance"]) == {instance.name}
    assert set(tp.frontier(instance, [instance.memory_bytes], ["exact"]).frame()["instance"]) == {instance.name}
