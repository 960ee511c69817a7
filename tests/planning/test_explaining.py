"""Options that units could have instead, against evaluating every other option; and the command."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from trainplan.formulations.joint.enumeration import solutions
from trainplan.formulations.joint.evaluation import evaluate, malformed, over_memory, violations
from trainplan.formulations.joint.unit_alternatives import Alternative, unit_alternatives

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.joint_instances import random_instance
from tests.helpers.refusals import refused

REQUEST = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64"]


def test_changes_are_what_all_other_options_come_to() -> None:
    """On tiny instances, in which every option of a unit is tried."""
    fitting = prevented = 0
    for seed in range(60):
        instance = random_instance(random.Random(seed))
        for solution in islice(solutions(instance), 0, 90, 7):
            if violations(instance, solution):
                continue
            step_ns = evaluate(instance, solution).time_ns
            configuration = instance.configurations[solution.configuration]
            for row in unit_alternatives(instance, solution):
                first = row.first
                options = instance.table(configuration, row.stage, first).options
                fits, over = list[Alternative](), list[Alternative]()
                for s, option in enumerate(options):
                    other = replace(solution, choice=(*solution.choice[:first], s, *solution.choice[first + 1 :]))
                    if s == solution.choice[first] or malformed(instance, other):
                        continue
                    costs = evaluate(instance, other)
                    (over if over_memory(instance, other, costs) else fits).append(Alternative(option.name, costs.time_ns, 0))
                least = min((fit.step_ns for fit in fits), default=None)
                assert (None if row.next_best is None else row.next_best.step_ns) == least
                shorter = min((entry.step_ns for entry in over if entry.step_ns < step_ns), default=None)
                assert (None if row.prevented is None else row.prevented.step_ns) == shorter
                fitting, prevented = fitting + (least is not None), prevented + (shorter is not None)
    assert fitting > 100 and prevented > 8


def test_a_plan_at_its_limit_says_what_keeps_it_from_a_shorter_step(tmp_path: Path) -> None:
    path, free = tmp_path / "plan.json", tmp_path / "free.json"
    assert call("plan", *REQUEST, "--memory", "560MB", "-o", path).returncode == 0
    done = call("explain", path, "--json")
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert any(stage["binds"] for stage in explained["stages"])
    for row in explained["changes"]:
        if row["prevented"] is not None:
            assert row["prevented"]["step_ns"] < explained["objective_ns"] and row["prevented"]["over_bytes"] > 0
        if row["next_best"] is not None:
            assert row["next_best"]["step_ns"] >= explained["objective_ns"] and row["next_best"]["over_bytes"] <= 0
    for stage in explained["stages"]:
        assert stage["compute"] + stage["communication"] + stage["waiting"] == pytest.approx(1)
    shown = call("explain", path).stdout
    assert " over" in shown and "changing one sub-layer only" in shown and "1 of " in shown

    assert call("plan", *REQUEST, "--memory", "4GiB", "-o", free).returncode == 0
    assert "sub-layers that the plans treat differently" in call("explain", path, free).stdout
    assert "all sub-layers are in the same stages" in call("explain", path, path).stdout


def test_a_plan_without_evidence_is_refused_in_one_line() -> None:
    answer = tp.plan(model="gpt2", cluster="cpu-4", batch=8, sequence=64, gap=1e-2)
    assert answer.plan is not None
    with refused("", problem="has no evidence of a search", where="plan", fix="`trainplan plan -o`"):
        tp.explain(answer.plan)
    stopped = tp.explain(tp.certify(answer, time_limit=1).plan, time_limit=0)
    assert not stopped.complete and all(change.next_best is None for change in stopped.changes)


def test_a_plan_of_a_run_says_what_explains_a_run(tmp_path: Path) -> None:
    """What `import-run -o` writes: no key of the file's format, but the command that judges a run."""
    script, path = tmp_path / "ds_config.json", tmp_path / "run.json"
    script.write_text(json.dumps({"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}))
    run = tp.import_run(script, cluster="h100:2", model="gpt2", sequence=64, batch=2, search=False)
    path.write_text(run.plan.model_dump_json())
    with refused("", where=str(path), problem="read from a file", fix=("import-run FILE", "`trainplan plan -o`")):
        tp.explain(path)
