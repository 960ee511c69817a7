"""The report of a plan: its numbers, against the analyses; hostile names; and the page in headless Chromium."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from trainplan.execution.analysis.memory.peak import held_parts, memory_walk
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.runtimes import devices_of
from trainplan.profiling.base.quantities import format_bytes, format_time

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.explanation import Neighbour, explain
from trainplan.plan_words import SHAPE
from trainplan.planning.proof import proof_of
from trainplan.prediction.metrics import PARTS, part_of
from trainplan.prediction.simulate import simulate
from trainplan.prediction.simulation import Simulation
from trainplan.reports.memory import stage_curves
from trainplan.reports.page import following
from trainplan.reports.runtime import by_runtime
from trainplan.reports.steps import drawn_step

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=3000"]
NAME = "</script><script>alert('&1')</script>"
PROBE = """<script>addEventListener("load", () => {
  const canvas = document.querySelector("canvas"), seen = [];
  const look = () => seen.push([Number(canvas.dataset.from), Number(canvas.dataset.to)]);
  look();
  for (const name of ["in", "in", "right", "out", "all"]) { document.querySelector(`[data-zoom=${name}]`).click(); look(); }
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, ctrlKey: true, cancelable: true })); look();
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Home", cancelable: true })); look();
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3] === 255) colours.add(pixels.slice(at, at + 3).join());
  const page = document.documentElement;
  const over = [...document.querySelectorAll("body *")].filter((each) => !each.closest(".scroll table") && !each.closest("svg")
    && each.getBoundingClientRect().right > page.clientWidth + 1).map((each) => each.outerHTML.slice(0, 90));
  const said = { seen, over, wide: page.scrollWidth - page.clientWidth, colours: colours.size, errors: window.wrong,
    back: getComputedStyle(document.body).backgroundColor };
  parent.postMessage(`said:${btoa(JSON.stringify(said))}:`, "*");
});</script>"""
CATCH = '<script>window.wrong = []; addEventListener("error", (event) => window.wrong.push(event.message));</script>'


@cache
def made() -> Plan:
    """A plan of two stages, four micro-batches and unlike strategies, with the evidence of its claim."""
    request = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 64, "pipeline": 2, "micro_batches": 4}
    plan = tp.certify(tp.plan(**request, cost_model="executed", comparisons=False), time_limit=5).plan
    assert plan is not None
    return plan


@cache
def simulated() -> Simulation:
    return simulate(made())


@cache
def written() -> str:
    return tp.report(made(), time_limit=5)


class _Outside(HTMLParser):
    """The resources that a page loads, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "href", "srcset")]


def test_the_page_says_what_the_analyses_say() -> None:
    page, simulation = written(), simulated()
    assert simulation.judged is not None and simulation.performance is not None and made().predicted is not None
    assert simulation.step_ns == made().predicted.step_ns
    assert f"<dd>{format_time(simulation.step_ns)}</dd>" in page
    for stage in simulation.performance.stages:
        assert f'<td class="number">{format_bytes(stage.peak_bytes)}</td>' in page
    assert "checked without any solver" in page and proof_of(made().claim) in page
    for unit in made().units:
        assert in_words(str(unit)) in page
    looked = _Outside()
    looked.feed(page)
    assert all(source.startswith("#") or source == "data:," for source in looked.sources)
    assert "@import" not in page and "url(" not in page and len(page) < 300_000


def test_the_timeline_is_the_simulation() -> None:
    """Every operation that takes time is on the page, at its time."""
    simulation = simulated()
    assert simulation.judged is not None
    drawn = drawn_step(made(), simulation.judged)
    for lane in drawn["lanes"]:
        mine = [(o.start_ns, o.end_ns) for o in simulation.judged.time.operations() if o.rank == lane["rank"]]
        shown = [
            (start + part[1], start + part[1] + part[2])
            for start, pattern, *_ in lane["blocks"]
            for part in drawn["patterns"][pattern]["parts"]
        ]
        assert shown == mine
    assert {lane["stage"] for lane in drawn["lanes"]} == {0, 1}
    assert json.loads(re.search(r'id="data">(.*?)</script>', written(), re.DOTALL)[1]) == json.loads(json.dumps(drawn))  # type: ignore[index]


def test_memory_over_time_reaches_the_analyses_peak() -> None:
    judged = simulated().judged
    assert judged is not None
    for rounds in judged.time.rounds:
        sums = [sum(held.values()) for held in held_parts(rounds.few, "serial", part_of, PARTS)]
        assert sums == list(memory_walk(rounds.few).during_bytes)
    for curve in stage_curves(made(), judged):
        assert max(map(sum, curve.columns)) == curve.peak_bytes


@pytest.mark.long
def test_a_step_in_rounds_is_drawn_whole() -> None:
    """A long program, of which the analysis has few micro-batches and how often they come, against all of its instructions."""
    request = {"model": "gpt2", "cluster": "h100:2x8", "batch": 512, "sequence": 64, "pipeline": 2, "micro_batches": 32}
    plan = tp.plan(**request, cost_model="executed", comparisons=False, time_limit=5).plan
    assert plan is not None
    judged = simulate(plan).judged
    assert judged is not None and any(rounds.count for rounds in judged.time.rounds)
    drawn = drawn_step(plan, judged)
    for lane in drawn["lanes"]:
        mine = [o for o in judged.time.operations() if o.rank == lane["rank"]]
        assert [(o.start_ns, o.end_ns) for o in mine] == [
            (start + part[1], start + part[1] + part[2])
            for start, pattern, *_ in lane["blocks"]
            for part in drawn["patterns"][pattern]["parts"]
        ]
        numbers = {o.instruction.micro_batch for o in mine if o.instruction.micro_batch is not None}
        assert {block[2] for block in lane["blocks"] if block[2] >= 0} == numbers == set(range(32))
    assert max(max(map(sum, curve.columns)) for curve in stage_curves(plan, judged)) == max(judged.peak_bytes)


def test_the_page_of_a_plan_for_a_runtime_has_the_numbers_of_the_runtime() -> None:
    """The parts add up to its step and its peaks, and what is drawn of trainplan's programs says so."""
    request = {"model": "llama-3.2-1b", "cluster": "h100:8", "batch": 32, "sequence": 2048, "pipeline": 2, "tp": 2}
    request["for_"] = "megatron"
    plan = tp.certify(tp.plan(**request, comparisons=False, time_limit=20), time_limit=5).plan
    assert plan is not None and plan.predicted is not None
    simulation, cluster = simulate(plan), devices_of(plan)
    theirs = by_runtime(plan, simulation, cluster)
    assert theirs is not None and cluster is not None and theirs.whose == "as Megatron-LM runs it"
    assert round(sum(ns for _, ns in theirs.step)) == pytest.approx(plan.predicted.step_ns, abs=len(theirs.step))
    times = dict(theirs.step)
    assert all(ns > 0 for ns in times.values()) and times["collectives in its passes that no kernel hides"] > 1e6  # of TP2
    for stage, row in zip(plan.stages, theirs.stages, strict=True):
        assert {plan.predicted.peak_bytes[rank] for rank in stage.ranks} == {row.peak_bytes}
        assert sum(row.parts.values()) == pytest.approx(row.peak_bytes, abs=1)
    page = tp.report(plan, time_limit=1)
    assert f"<dt>device time</dt><dd>{theirs.shares}</dd>" in html.unescape(page)
    for row in theirs.stages:
        assert f'<td class="number">{format_bytes(row.peak_bytes)}</td>' in page
    assert html.unescape(page).count(f"Of {SHAPE}") == 3 and SHAPE not in html.unescape(written())
    unknown = by_runtime(plan, simulation, None)
    assert unknown is not None and not unknown.step and not unknown.parts
    assert [row.peak_bytes for row in unknown.stages] == [row.peak_bytes for row in theirs.stages]
    assert by_runtime(made(), simulated(), cluster) is None


def test_the_page_says_what_more_memory_gives_as_explain_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no change of one sub-layer was found, nothing says that memory does not help; a change of the whole plan does."""
    own = explain(made(), time_limit=5)
    faster = Neighbour("tensor parallelism over 1", own.step_ns // 2, own.limit_bytes + 2**30)
    slower, fitting = Neighbour("slower", 2 * own.step_ns, 2 * own.limit_bytes), Neighbour("fitting", own.step_ns // 2, 1)
    alike = replace(own, changes=(), neighbours=(faster, fitting, slower))
    assert alike.prevented == (faster,) and not alike.changed_alone and own.changed_alone
    monkeypatch.setattr("trainplan.reports.page.explain", lambda *_, **__: alike)
    page = tp.report(made())
    assert "these do not fit: tensor parallelism over 1 (" in page and "1 GiB over)" in page and "no gain found" not in page
    assert "fitting (" not in page and "slower (" not in page
    assert "no gain found" in written() and "more memory, one sub-layer changed" in written()


def test_check_states_the_predicted_step_and_what_is_proven(tmp_path: Path) -> None:
    path, predicted = tmp_path / "plan.json", made().predicted
    path.write_text(made().model_dump_json())
    assert predicted is not None and tp.check(made()).step_ns == predicted.step_ns
    done = " ".join(call("check", path).stdout.split())
    claim = made().claim
    assert claim is not None and f"predicted step {format_time(predicted.step_ns)} (as the plan states)" in done
    assert ("are of the solver's objective" in done) is (claim.objective_ns != predicted.step_ns)


def test_hostile_names_are_text() -> None:
    plan = made()
    model = {**plan.model, "name": NAME}
    page = tp.report(plan.changed(model=model), time_limit=1)
    looked = _Outside()
    looked.feed(page)
    assert looked.tags.count("script") == 2 and "alert(" in page and NAME not in page


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(made().model_dump_json())
    done = call("report", path, "-o", tmp_path / "report.html", "--time-limit", "5")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    missing = call("report", path)
    assert missing.returncode == 2 and "--output is missing" in missing.stderr
    bare = made().changed(claim=None)
    assert "No solver has said how good this plan is" in tp.report(bare)
    with refused("claim.evidence.cluster", fix=("`trainplan plan -o`", "--cluster")):
        tp.report(bare, compare=True)


@pytest.mark.long
def test_the_page_says_what_made_it_and_what_comes_next(tmp_path: Path) -> None:
    path = tmp_path / "my plan.json"
    path.write_text(made().model_dump_json())
    page = html.unescape(tp.report(path, time_limit=1))
    assert f"trainplan {tp.__version__}" in page and f"<code>trainplan report '{path}' -o report.html</code>" in page
    for text, _ in following(made(), "plan.json"):
        words = text.split()[1:]
        assert call(*words, "--help").returncode == 0, text
    assert "cpu-4" in page and f"trainplan run '{path}' --scale-down 16" in page
    bridged = made().changed(runs_by={"name": "megatron", "software": "megatron-core"})
    assert following(bridged, "plan.json")[0][0] == "trainplan export plan.json --to megatron -o run"


def test_the_comparison_has_one_strategy_and_the_papers_planners() -> None:
    page = tp.report(made(), compare=True, time_limit=5)
    table = page[page.index('id="comparison"') : page.index('id="data"')]
    uniform = tp.plan(
        model="gpt2",
        cluster="cpu-4",
        batch=8,
        sequence=64,
        cost_model="executed",
        one_strategy=True,
        comparisons=False,
        time_limit=5,
    ).plan
    assert uniform is not None and uniform.predicted is not None
    assert f'<td>one strategy</td><td class="number">{format_time(uniform.predicted.step_ns)}</td>' in table
    assert all(
        name in table
        for name in ("AutoPipe", "AMP", "Galvatron-BMW", "H3T", f"{in_words(uniform.one_strategy)} for all sub-layers")
    )


def _browser(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_in_a_browser(width: int, dark: bool, tmp_path: Path) -> None:
    """No script fails, nothing reaches beyond the page's edge, both themes are drawn, and zooming changes what is shown.

    The page stands in a frame of that width, since a window has a least width of its own."""
    page = written().replace("<head>", f"<head>{CATCH}").replace("</body>", f"{PROBE}</body>")
    (tmp_path / "page.html").write_text(page)
    report = "addEventListener('message', (e) => document.body.append(e.data))"
    frame = f'<script>{report}</script><iframe src="page.html" style="border:0;width:{width}px;height:900px"></iframe>'
    (tmp_path / "frame.html").write_text(frame)
    theme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = _browser("--window-size=1400,1000", theme, "--dump-dom", (tmp_path / "frame.html").as_uri(), folder=tmp_path)
    match = re.search(r"said:([\w+/=]+):", done.stdout)
    assert match is not None, done.stdout[-500:] + done.stderr[-500:]
    stated = json.loads(base64.b64decode(match[1]))
    assert stated["errors"] == [] and stated["over"] == [] and stated["wide"] <= 0
    whole, once, twice, later, back, again, wheel, home = stated["seen"]
    length = [to - begin for begin, to in stated["seen"]]
    assert whole == [0, simulated().step_ns] == again == home
    assert length[0] > length[1] > length[2] == pytest.approx(length[3], abs=2)
    assert once != whole and later[0] > twice[0] and length[4] > length[3] and back != again and length[6] < length[0]
    assert wheel != whole and stated["colours"] >= 3
    assert (stated["back"] == "rgb(20, 23, 27)") is dark


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_prints(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(written())
    _browser(f"--print-to-pdf={tmp_path / 'page.pdf'}", (tmp_path / "page.html").as_uri(), folder=tmp_path)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
