"""One line says how good a plan is proven to be, wherever that is said."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from trainplan.profiling.base.quantities import format_gap

from tests.helpers.calls import call
from trainplan.planning.proof import proof, status_text


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
