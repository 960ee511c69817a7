"""The examples of docs/extending.md, done as printed there: a method's package installed, tested and used; a strategy level,
an optimizer, a schedule and a runtime added to a copy of the tree in the places that the page names, and its commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = re.findall(r"^`(hillclimb/[\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^trainplan .*$", PAGE[PAGE.index("pip install ./hillclimb") :].partition("```")[0], re.MULTILINE)


def test_the_printed_method_is_installed_tested_and_used(tmp_path: Path) -> None:
    assert [name for name, _ in FILES] == [
        f"hillclimb/{name}" for name in ("pyproject.toml", "hillclimb.py", "test_hillclimb.py")
    ]
    assert len(COMMANDS) == 2
    (tmp_path / "hillclimb").mkdir()
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    alone = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run("pip", "install", *alone, "--target", "site", "./hillclimb")
    assert "1 passed" in run("pytest", "-q", "-p", "no:cacheprovider", "hillclimb")
    _, solved = (run(*shlex.split(command)) for command in COMMANDS)
    assert "hill-climbing" in solved and "peak memory" in solved


class Tree:
    """A copy of the product to which things are added; `files` are those that were changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.product, self.files = folder, folder / "trainplan", set[str]()
        shutil.copytree(ROOT / "trainplan", self.product, ignore=shutil.ignore_patterns("__pycache__"))
        for package in ("profiling", "formulations", "solvers", "execution"):
            shutil.copytree(ROOT / package, self.product / package, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, file: str, after: str, text: str) -> None:
        """Add text after the only place where a file has another one."""
        path = self.product / file
        content = path.read_text()
        assert content.count(after) == 1, (file, after)
        path.write_text(content.replace(after, after + text))
        self.files.add(file)

    def add_section(self, title: str) -> list[str]:
        """Do what a section of the page shows; the commands that show that it is done."""
        section = PAGE[PAGE.index(f"\n## {title}\n") + 1 :].partition("\n## ")[0]
        for file, after, block in re.findall(r"`([\w/]+\.py)`,\safter\s`([^`]+)`:\n\n```python\n(.*?)```", section, re.DOTALL):
            self.add(file, after + "\n", block)
        return re.findall(r"^trainplan .*$", section, re.MULTILINE)

    def started(self, command: str) -> subprocess.CompletedProcess[str]:
        """A command that has ended, with what it printed."""
        return subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder), "COLUMNS": "200"},
            check=False,
        )

    def run(self, command: str) -> str:
        """The output of a command, which has to succeed."""
        done = self.started(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def refused(self, command: str, *facts: str) -> None:
        """Check that a command ends by an error of its input that states all facts."""
        done = self.started(command)
        assert done.returncode == 2 and done.stderr.startswith("trainplan: "), (command, done.stdout, done.stderr)
        assert all(fact in done.stderr for fact in facts), (facts, done.stderr)

    def changed_plan(self, name: str, into: str, **fields: object) -> None:
        """Write a plan of the folder into another file, without predictions, with some fields changed."""
        plan = json.loads((self.folder / name).read_text())
        kept = {field: value for field, value in plan.items() if field not in ("claim", "predicted", "runs_by")}
        (self.folder / into).write_text(json.dumps(kept | fields))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def agree(printed: str) -> bool:
    """Whether a run's parameters are those of one process."""
    found = re.search(r"^parameters +largest difference after step 2 (\S+)", printed, re.MULTILINE)
    return found is not None and float(found[1]) < 1e-12


def test_an_optimizer_is_added_in_three_places(tree: Tree) -> None:
    commands = tree.add_section("An optimizer")
    tree.add("profiling/models/optimizers.py", "OptimizerName = Literal[", '"momentum", ')
    tree.add("execution/runtimes/trainplan/capabilities.py", "optimizers={", '"momentum": (0, 1, 2, 3), ')
    assert len(tree.files) == 3 and len(commands) == 3
    planned, checked, ran = map(tree.run, commands)
    assert "Momentum" in planned and re.search(r"violations +none", checked) and agree(ran)
    content = json.loads((tree.folder / "plan.json").read_text())
    assert content["optimizer"] == "momentum"
    tree.run(commands[0].replace("momentum", "adamw").replace("plan.json", "adamw.json"))
    peaks = [json.loads((tree.folder / name).read_text())["predicted"]["peak_bytes"] for name in ("plan.json", "adamw.json")]
    assert max(peaks[0]) < max(peaks[1])


@pytest.mark.long
def test_an_optimizer_is_exported_by_the_runtimes_word_or_refused(tree: Tree) -> None:
    """Never as an optimizer that the plan does not have."""
    planned = tree.add_section("An optimizer")[0].replace("--for trainplan", "--schedule 1f1b --tp 1 --zero 0 --one-strategy")
    tree.add("profiling/models/optimizers.py", "OptimizerName = Literal[", '"momentum", ')
    tree.run(planned)
    for runtime in ("megatron", "megatron-bridge", "deepspeed", "accelerate", "torch"):
        tree.refused(f"trainplan export plan.json --to {runtime} -o run", "'momentum'")
    tree.add("execution/runtimes/megatron/capabilities.py", "    optimizers={", '"momentum": (0,), ')
    for runtime in ("megatron", "megatron-bridge"):
        tree.refused(f"trainplan export plan.json --to {runtime} -o run", "'momentum'")
    tree.add(
        "execution/runtimes/megatron/fields.py",
        "STEPPED: dict[str, tuple[OptimizerName, bool]] = {",
        '"sgd": ("momentum", False), ',
    )
    tree.run("trainplan export plan.json --to megatron -o run")
    arguments = (tree.folder / "run/megatron_args.sh").read_text()
    assert "--optimizer sgd" in arguments and "muon" not in arguments
    tree.run("trainplan export plan.json --to megatron-bridge -o bridge")
    assert "optimizer: sgd" in (tree.folder / "bridge/bridge.yaml").read_text()


@pytest.mark.long
def test_a_level_of_copies_is_added_in_two_places(tree: Tree) -> None:
    commands = tree.add_section("A strategy level")
    tree.add("formulations/plan/strategy.py", "Paradigm = Literal[", '"rp", ')
    tree.add("execution/support.py", '        "context parallelism",', ' "replicas",')
    assert len(tree.files) == 2 and len(commands) == 4
    planned, checked, simulated, ran = map(tree.run, commands)
    units = json.loads((tree.folder / "plan.json").read_text())["units"]
    assert {level["axis"] for unit in units for level in unit["layout"]["levels"]} == {"rp"}
    assert "written" in planned and re.search(r"violations +none", checked) and agree(ran)
    by_torch = tree.run(commands[3] + " --by torch")
    by_program = tree.run(commands[3] + " --by program")
    assert agree(by_torch) and agree(by_program)  # the table of both ends is summed once, by either executor
    as_dp = [unit | {"layout": {"levels": [{"axis": "dp", "degree": 2}]}} for unit in units]
    tree.changed_plan("plan.json", "rp.json")
    tree.changed_plan("plan.json", "dp.json", units=as_dp)
    assert re.search(r"^step +\S+ m?s", simulated, re.MULTILINE)
    for options in ("cpu-4 --cost-model executed", "h100:4 --cost-model executed", "h100:4 --cost-model streams"):
        rp, dp = (tree.run(f"trainplan simulate {name}.json --cluster {options} --json") for name in ("rp", "dp"))
        assert rp == dp, options
    tree.refused("trainplan export rp.json --to torch -o run", "'rp2'", "replicas")
    tree.refused("trainplan export rp.json --to megatron -o run", "'rp2'", "replicas")


@pytest.mark.long
def test_a_schedule_is_added_in_one_place(tree: Tree) -> None:
    commands = tree.add_section("A schedule")
    tree.add("formulations/schedule/orders.py", "PlanSchedule = Literal[", '"early", ')
    assert len(tree.files) == 1 and len(commands) == 3
    tree.run("trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --memory 2GiB --pipeline 2 -o plan.json")
    usual = tree.run("trainplan simulate plan.json --cluster cpu-4")
    tree.changed_plan("plan.json", "plan.json", schedule="early")
    checked, simulated, ran = map(tree.run, commands)
    assert re.search(r"^pipeline .*: early, 4 micro-batches", simulated, re.MULTILINE)
    assert re.search(r"violations +none", checked) and agree(ran)
    in_flight = [re.findall(r"^ +\d .* (\d) +[\d.]+ m?s *$", text, re.MULTILINE) for text in (usual, simulated)]
    assert in_flight == [["2", "1"], ["3", "2"]]  # one more micro-batch on each device
    for runtime in ("megatron", "torch", "deepspeed"):
        tree.refused(f"trainplan export plan.json --to {runtime} -o run", "schedule is 'early'")
    tree.refused("trainplan simulate plan.json --cluster h100:4 --for megatron", "schedule is 'early'")


@pytest.mark.long
def test_an_added_schedule_is_solved_by_its_order_and_proven_by_no_other_ones_bounds(tree: Tree) -> None:
    tree.add_section("A schedule")
    tree.add("formulations/schedule/orders.py", "PlanSchedule = Literal[", '"early", ')
    tree.add("formulations/joint/problem.py", "ScheduleName = Literal[", '"early", ')
    request = "trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --memory 2GiB --pipeline 2 --micro-batches 4"
    tree.refused(f"{request} --schedule early -o plan.json", "schedule is 'early'", "milp")
    tree.refused(f"{request} --schedule early --for megatron -o plan.json", "--schedule is early")
    tree.run(f"{request} --schedule early --method milp -o plan.json")
    assert json.loads((tree.folder / "plan.json").read_text())["schedule"] == "early"
    assert re.search(r"violations +none", tree.run("trainplan check plan.json"))
    tree.run(f"{request} --schedule all -o plan.json")  # of those that the exact method can prove


NOTE = re.compile("mini: predicted as trainplan's own programs")
REQUEST = "trainplan plan --model qwen3-0.6b --cluster h100:2 --batch 4 --sequence 4096"


def add_runtime(tree: Tree) -> Path:
    """Add a runtime, mini, to a tree; its folder."""
    folder = tree.product / "execution/runtimes/mini"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "capabilities.py").write_text(
        "from trainplan.formulations.runtimes import Runtime\n\nCAPABILITIES = Runtime(('1f1b',), (0, 3))\n"
    )
    (folder / "export.py").write_text(
        "from trainplan.execution.runtimes.torchtitan.export import export as export  # the files of another one\n"
    )
    tree.add("formulations/runtimes.py", "\nFOLDERS = {", '\n    "mini": "mini",')
    return folder


def test_a_runtime_is_a_folder_and_a_line(tree: Tree) -> None:
    """Whoever plans for it is warned that nothing predicts it."""
    add_runtime(tree)
    request = "trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --memory 2GiB"
    assert "of any plan for mini" in " ".join(tree.run(f"{request} --for mini -o plan.json").split())
    assert "mini" in tree.run("trainplan export --help") and "mini" in tree.run("trainplan plan --help")
    assert NOTE.search(tree.run(f"{REQUEST} --for mini"))


@pytest.mark.long
def test_a_runtime_has_a_row_a_reader_and_its_own_prediction(tree: Tree) -> None:
    folder = add_runtime(tree)
    alone, table = tree.run(f"{REQUEST} --for mini"), tree.run(f"{REQUEST} --time-limit 30").partition("RUNTIMES")[2]
    assert re.search(r"^ *mini +\d", table, re.MULTILINE) and NOTE.search(table) and NOTE.search(alone)
    path = folder / "capabilities.py"
    settings = "run_by=lambda _: RunBy(name='mini', software='torchtitan')"
    text = "from trainplan.formulations.plan.plan import RunBy\n" + path.read_text()
    path.write_text(text.replace("(0, 3))", f"(0, 3), {settings})"))
    (folder / "reader.py").write_text("from trainplan.execution.runtimes.torchtitan.reader import read as read\n")
    predicted = tree.run(f"{REQUEST} --for mini")
    tree.run("trainplan plan --model qwen3-8b --cluster h100:8 --batch 16 --sequence 2048 --pipeline 1 --for mini -o plan.json")
    tree.run("trainplan export plan.json --to mini -o run")
    assert "SPEED" in tree.run("trainplan import-run run/torchtitan.toml --runtime mini --cluster h100:8")
    assert not NOTE.search(predicted)
    step = re.compile(r"^SPEED +(.*?) a step", re.MULTILINE)
    assert step.findall(predicted) != step.findall(alone)
