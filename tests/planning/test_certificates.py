"""Claims with evidence: plans whose bounds `check` follows without any solver, claims that do not hold, and the one line that
states how good a plan is proven to be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.base.quantities import format_bytes, format_gap
from trainplan.solvers.core.result import Point

import trainplan as tp
from tests.helpers.calls import call
from trainplan.planning.proof import proof, status_text
from trainplan.planning.result import PlanningResult
from trainplan.verification import CheckedPlan

REQUEST: dict[str, Any] = {"model": "bert-huge-32", "cluster": "rtx-titan-8", "batch": 32, "memory": "8GiB", "micro_batches": 8}


@pytest.fixture(scope="module")
def answer() -> PlanningResult:
    return tp.certify(tp.plan(**REQUEST, gap=1e-3))


def checked(plan: Plan | dict[str, Any], **more: Any) -> CheckedPlan:
    found = tp.check(plan, **more)
    assert isinstance(found, CheckedPlan)
    return found


def test_a_claim_is_checked_without_a_solver(answer: PlanningResult, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer.plan is not None and answer.plan.claim is not None and answer.plan.claim.evidence is not None
    text = answer.plan.model_dump_json()
    assert tp.check is not None  # its module is imported when it is first requested, and is to have the solver
    with monkeypatch.context() as patch:
        patch.setattr("trainplan.solvers.core.solve.solve", None)
        found = checked(load_plan(json.loads(text)))
    claim = found.claim
    assert claim is not None and claim.faults == () and found.violations == ()
    assert claim.objective_ns == answer.plan.claim.objective_ns and claim.claimed_bound_ns == answer.plan.claim.bound_ns
    assert claim.bound_ns is not None and claim.weak_bound_ns is not None
    assert claim.weak_bound_ns < claim.bound_ns <= claim.objective_ns
    assert claim.bound_ns > 0.95 * claim.objective_ns and claim.evidence
    assert "checked without any solver" in claim.verdict and len(text) < 500_000


def test_claims_that_do_not_hold_are_refuted(answer: PlanningResult) -> None:
    assert answer.plan is not None

    def changed(*path: Any, to: Any) -> tuple[str, ...]:
        record = json.loads(answer.plan.model_dump_json())  # type: ignore[union-attr]
        node = record["claim"]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to(node[path[-1]]) if callable(to) else to
        return checked(record).violations

    assert any("objective is" in text for text in changed("objective_ns", to=lambda ns: ns - 1))
    assert any("above the plan's own objective" in text for text in changed("bound_ns", to=lambda ns: 2 * ns))
    assert any("the gap is written as 0.0" in text for text in changed("gap", to=0.0))
    assert any("status is 'infeasible'" in text for text in changed("status", to="infeasible"))
    assert any("of the cost model 'measured'" in text for text in changed("cost_model", to="measured"))
    assert any("option 'foo'" in text for text in changed("evidence", "options", "foo", to=1))
    assert any("shows" in text for text in changed("evidence", "bound_ns", to=lambda ns: ns + 1))
    rows = answer.plan.claim.evidence.proof["configurations"]  # type: ignore[union-attr, index]
    node = max(range(len(rows)), key=lambda at: len(rows[at].get("prices", ())))
    path = "evidence", "proof", "configurations", node, "impossible_ns"
    assert any("may have a step" in text for text in changed(*path, to=lambda ns: 10 * ns))
    assert any("another instance" in text for text in changed("evidence", "proof", "instance", to="0"))
    assert any("another instance" in text for text in changed("evidence", "memory_bytes", to=lambda size: size // 2))
    choice = answer.plan.claim.evidence.solution["choice"]  # type: ignore[union-attr]
    other = [choice[0] ^ 1, *choice[1:]]
    assert any("another plan" in text or "objective is" in text for text in changed("evidence", "solution", "choice", to=other))
    assert changed("evidence", "solution", "choice", to=[10**6] * len(choice))
    assert changed("evidence", "proof", "configurations", to=[])


def test_evidence_for_less_memory_says_nothing_of_more(answer: PlanningResult) -> None:
    assert answer.plan is not None and answer.plan.claim is not None
    found = checked(answer.plan.changed(memory_bytes=2 * answer.plan.memory_bytes))
    assert any("and the evidence for" in text for text in found.violations)
    assert found.claim is not None and found.claim.verdict == "refuted"
    verdict = checked(answer.plan).claim.verdict  # type: ignore[union-attr]
    assert f"within {format_bytes(answer.plan.memory_bytes)} a device is more than" in verdict


def test_gathering_evidence_says_what_it_is_at(answer: PlanningResult) -> None:
    reported: list[Point | str] = []
    made = tp.certify(answer, progress=reported.append)
    assert made.plan is not None and made.plan.claim is not None and made.plan.claim.evidence is not None
    texts = [entry for entry in reported if isinstance(entry, str)]
    bounds = [entry.bound for entry in reported if isinstance(entry, Point)]
    assert texts == ["gathering evidence of the proven lower bound", "checking the evidence"]
    assert bounds == sorted(bounds) and bounds[-1] == made.plan.claim.evidence.bound_ns  # type: ignore[type-var]
    assert "by evidence that is checked without any solver" in dict(made.summary())["certificate"]


def test_evidence_that_time_does_not_allow_is_weaker_and_holds() -> None:
    made = tp.certify(tp.plan(**REQUEST, gap=1e-2), time_limit=1e-6)
    assert made.plan is not None
    assert "in closed form, without any solver" in dict(made.summary())["certificate"]
    claim = checked(made.plan).claim
    assert claim is not None and claim.bound_ns == claim.weak_bound_ns and claim.faults == () and not claim.evidence


def test_evidence_that_proves_more_than_the_search_raises_the_bound_of_the_claim() -> None:
    """The search may stop at a gap of one half, which it reaches by its quick bounds; the evidence is of weighted paths."""
    answer = tp.plan(**REQUEST, gap=0.5)
    made = tp.certify(answer)
    assert answer.plan is not None and answer.plan.claim is not None and answer.plan.claim.bound_ns is not None
    assert made.plan is not None and made.plan.claim is not None and made.plan.claim.evidence is not None
    claim = made.plan.claim
    assert claim.bound_ns == claim.evidence.bound_ns == made.answer.bound_ns and claim.bound_ns > answer.plan.claim.bound_ns  # type: ignore[union-attr, operator]
    assert claim.gap is not None and claim.gap == made.answer.gap and claim.gap < answer.plan.claim.gap  # type: ignore[operator]
    assert "without any solver" in str(claim.bound_source)


def test_a_plan_of_a_profile_is_checked_with_it() -> None:
    profile = tp.profile(model="gpt2", cluster="cpu-4", sequence=64, rows=(1, 2, 4, 8))
    made = tp.certify(tp.plan(model="gpt2", profile=profile, batch=8))
    assert made.plan is not None
    without, given = checked(made.plan).claim, checked(made.plan, profile=profile).claim
    assert without is not None and "give it as --profile" in without.verdict and without.bound_ns is None
    assert given is not None and given.faults == () and given.bound_ns is not None


@pytest.mark.parametrize("runtime", ["torch", "torchtitan", "megatron"])
def test_claims_within_a_runtime_are_checked_within_the_memory_that_it_leaves(runtime: str) -> None:
    """In bfloat16, where torch keeps gradients of shards in float32 in addition to what the plan has. Bounds of a runtime's own
    prediction are computed again, and so need no evidence."""
    answer = tp.plan(model="llama3-8b", cluster="h100:8", batch=32, sequence=4096, for_=runtime, comparisons=False)
    certified = tp.certify(answer)
    assert certified.plan is not None
    claim = checked(certified.plan).claim
    assert claim is not None and claim.faults == () and claim.unchecked is None
    assert claim.evidence if runtime == "torch" else claim.bound_ns == claim.objective_ns


def test_what_has_no_evidence_stays_as_it_is() -> None:
    made = tp.plan(like="galvatron-bmw", model="gpt2", cluster="cpu-4", batch=8, sequence=64)
    assert tp.certify(made) is made and made.plan is not None
    assert checked(made.plan).claim is None


def test_the_command_writes_evidence_and_says_what_it_proves(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ["--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64", "--pipeline", "2", "-o", path]
    assert call("plan", *words).returncode == 0
    done = call("check", path)
    assert done.returncode == 0
    for text in ("proven lower bound", "said by the solver, not checked", "independent check", "verdict", "evaluated again"):
        assert text in done.stdout
    content = json.loads(call("check", path, "--json").stdout)
    assert content["claim"]["bound_ns"] <= content["claim"]["objective_ns"]
    record = json.loads(path.read_text())
    record["claim"]["objective_ns"] -= 1
    path.write_text(json.dumps(record))
    refuted = call("check", path)
    assert refuted.returncode == 1 and "refuted" in refuted.stdout


@pytest.mark.parametrize("depth", [10**6 - 2**63, 0, 1000])
def test_depths_that_no_stage_has_prove_nothing(answer: PlanningResult, depth: int) -> None:
    """Such as one whose bytes wrap around in 64 bits, so that nothing seems to fit."""
    assert answer.plan is not None and answer.plan.claim is not None
    record = json.loads(answer.plan.model_dump_json())
    evidence, objective = record["claim"]["evidence"], record["claim"]["objective_ns"]
    for row in evidence["proof"]["configurations"]:
        row.update(depths=[depth], prices=[1, 1000], impossible_ns=objective - 1)
    evidence["bound_ns"] = record["claim"]["bound_ns"] = objective
    assert checked(record).violations


@pytest.mark.parametrize("change", [{"prices": [2**70]}, {"impossible_ns": 1e400}, {"depths": None}])
def test_damaged_evidence_is_refused_in_words(answer: PlanningResult, change: dict[str, Any]) -> None:
    assert answer.plan is not None
    record = json.loads(answer.plan.model_dump_json())
    for row in record["claim"]["evidence"]["proof"]["configurations"]:
        row.update(change, **({"impossible_ns": 10**18} if "prices" in change else {}))
    assert checked(record).violations


def test_damaged_options_are_refused_in_words(answer: PlanningResult) -> None:
    assert answer.plan is not None
    record = json.loads(answer.plan.model_dump_json())
    del record["claim"]["evidence"]["options"]["pipeline"]
    assert checked(record).violations


def test_evidence_of_earlier_plans_is_followed(answer: PlanningResult) -> None:
    """Their options have --fp8 in place of --precision, and lack those that came later."""
    assert answer.plan is not None
    record = json.loads(answer.plan.model_dump_json())
    options = record["claim"]["evidence"]["options"]
    for name in ("recompute_first", "precision", "gradients"):
        del options[name]
    options["fp8"] = False
    found = checked(record)
    assert found.violations == () and found.claim == checked(answer.plan.model_dump(mode="json")).claim


@given(st.integers(1, 10**15), st.data())
def test_what_is_not_zero_is_never_printed_as_zero_nor_rounded_down(objective_ns: int, data: st.DataObject) -> None:
    bound_ns = data.draw(st.integers(0, objective_ns))
    shown = float(format_gap(1 - bound_ns / objective_ns).removesuffix(" %"))
    assert shown >= 100 * (objective_ns - bound_ns) / objective_ns - 1e-6
    assert (shown == 0) == (1 - bound_ns / objective_ns == 0)
    text = proof(objective_ns, bound_ns, bound_ns)
    assert ("optimal" in text) == (shown == 0) and "0 %" not in re.findall(r"\d[\d.]* %", text)


def test_the_line_says_who_has_proven_what() -> None:
    assert proof(1000, 999, 986, "any plan") == "within 0.1 % (solver) / 1.4 % (independent check), of any plan"
    assert proof(1000, 1000, 986) == "optimal (solver) / within 1.4 % (independent check)"
    assert proof(1000, 1000, 1000) == "optimal (solver) / optimal (independent check)"
    assert proof(1000, 990, None) == "within 1 % (solver)"
    assert proof(1000, None, None) == "no lower bound is known"


def test_optimal_within_a_gap_is_not_called_optimal() -> None:
    assert status_text("optimal", 0.0004) == "within 0.1 % of the optimum"
    assert status_text("optimal", 0.0) == "optimal" and status_text("feasible", 0.2) == "feasible"


def test_plan_check_explain_and_report_say_the_same(tmp_path: Path) -> None:
    path, page = tmp_path / "plan.json", tmp_path / "report.html"
    planned = " ".join(
        call("plan", "gpt2", "cpu-4", "--batch", "8", "--sequence", "64", "--gap", "0.05", "-o", path).stdout.split()
    )
    line = re.search(r"BEST\? (.+ \(solver\) / .+ \(independent check\))", planned)
    assert line is not None and "not done" not in line[1]
    for words in (("check", path), ("explain", path, "--time-limit", "1")):
        assert line[1] in " ".join(call(*words).stdout.split())
    call("report", path, "-o", page, "--time-limit", "1")
    assert line[1] in page.read_text()
