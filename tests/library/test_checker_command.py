"""The library's checker as a command: which files it takes, and what is false or malformed in them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.problem import problem
from trainplan.solvers.core.solve import solve

from tests.helpers.joint_instances import any_form
from tests.library.test_checker_chain import SMALL as CHAINS
from tests.library.test_checker_chain import optimum, small_switches
from tests.library.test_checker_stages import RANDOM
from tests.solvers.test_joint import least_step_ns, tiny_instance
from trainplan.libraries.catalogue import library
from trainplan.libraries.checking import checker

LIBRARY = library()
ENTRY = json.loads(json.dumps(LIBRARY["partition/gpt2-345m-autopipe-3090-16-b128-pp2-m8"].whole()))


def run(folder: Path, *contents: Any) -> subprocess.CompletedProcess[str]:
    """Run the checker as a reader of its page does, on files of these contents: JSON values, or bytes as they are."""
    paths = []
    for index, content in enumerate(contents):
        paths.append(folder / f"{index}.json")
        paths[-1].write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    command = [sys.executable, "-I", "-S", str(checker().__file__), *map(str, paths)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def changed(change: Callable[[Any], Any]) -> Any:
    """The entry with a change."""
    entry = deepcopy(ENTRY)
    change(entry)
    return entry


def test_an_instance_is_enough_to_evaluate_a_solution(tmp_path: Path) -> None:
    solution, value = ENTRY["upper_bound"]["solution"], f"{ENTRY['upper_bound']['value']} ns"
    alone = run(tmp_path, ENTRY["instance"], solution)
    assert alone.returncode == 0 and value in alone.stdout and "bound" not in alone.stdout
    empty = changed(lambda entry: entry.update(instance=None))
    assert run(tmp_path, empty).returncode == 2
    whole = run(tmp_path, empty, ENTRY["instance"], solution)
    assert whole.returncode == 0 and value in whole.stdout and "optimal" in whole.stdout
    another = LIBRARY["partition/gpt2-345m-autopipe-3090-16-b128-pp2-m4-5955MiB"].whole()["instance"]
    assert run(tmp_path, empty, another, solution).returncode == 1  # the entry's own solution has another value there
    assert run(tmp_path, ENTRY["instance"]).returncode == 2


def test_a_solution_is_compared_with_the_best(tmp_path: Path) -> None:
    worse = changed(lambda entry: entry["upper_bound"]["solution"].update(cuts=[1]))["upper_bound"]["solution"]
    done = run(tmp_path, ENTRY, worse)
    assert done.returncode == 0 and "% less" in done.stdout
    better = run(tmp_path, changed(lambda entry: entry["upper_bound"].update(solution=worse)), ENTRY["upper_bound"]["solution"])
    assert better.returncode == 1  # the entry's own value is wrong, too, though not of the other solution


def test_sliced_solutions_are_not_compared_with_bounds_of_whole_ones(tmp_path: Path) -> None:
    sliced = ENTRY["upper_bound"]["solution"] | {"sliced": 1}
    done = run(tmp_path, ENTRY, sliced)
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert done.returncode == 0 and "gap" not in found and "sliced is 1" in done.stdout
    assert int(found["value"].split()[0]) < ENTRY["lower_bound"]["value"]  # halves are faster than any whole ones
    value = int(found["value"].split()[0])
    own = changed(lambda entry: entry["upper_bound"].update(solution=sliced, value=value))
    assert run(tmp_path, own).returncode == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry["lower_bound"].update(value=entry["upper_bound"]["value"] + 1),
        lambda entry: entry["checked_lower_bound"].update(value=entry["upper_bound"]["value"] + 1),
        lambda entry: entry["checked_lower_bound"].update(value=float("nan")),
        lambda entry: entry["checked_lower_bound"].update(value=float("inf")),
        lambda entry: entry["checked_lower_bound"].update(value="9"),
        lambda entry: entry["checked_lower_bound"].update(value=-1),
        lambda entry: entry["checked_lower_bound"].update(evidence=None),
        lambda entry: entry["checked_lower_bound"].pop("evidence"),
        lambda entry: entry["checked_lower_bound"].update(kind=[]),
        lambda entry: entry["upper_bound"].update(solution=None),
        lambda entry: entry["upper_bound"].update(solution=[]),
        lambda entry: entry["upper_bound"].update(value=True),
        lambda entry: entry["instance"].update(version=2),
        lambda entry: entry["instance"].pop("stages"),
        lambda entry: entry.update(format="trainplan-library/2"),
        lambda entry: entry.update(problem="joint"),
        lambda entry: entry.update(instance=[]),
        lambda entry: entry.update(infeasible=True),
        lambda entry: entry.update(infeasible=True, upper_bound=None, lower_bound=None, checked_lower_bound=None),
    ],
)
def test_what_is_false_or_malformed_is_refused_without_a_traceback(tmp_path: Path, change: Any) -> None:
    done = run(tmp_path, changed(change))
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert done.returncode == 1 or len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\x1f\x8b\x08", b"\xff", b"[" * 10**5, b""])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    done = run(tmp_path, content)
    assert done.returncode == 2 and "Traceback" not in done.stderr


# Instances of which nothing fits


def scarce(name: str, seed: int) -> Any:
    """A random small instance of a problem with little memory, and its content."""
    rng = random.Random(seed)
    if name == "memory-switches":
        made = small_switches(seed, 2)
    elif name == "joint":
        made = rng.choice([tiny_instance, any_form])(seed)
    else:
        made = (
            CHAINS[name](seed)
            if name in CHAINS
            else RANDOM[name](seed)
            if "cluster" in name
            else RANDOM[name](seed, memory=True)
        )
    content, factor = json.loads(json.dumps(made.to_dict())), rng.choice([1, 0.8, 0.6, 0.4])
    limits = content.get("classes") or content.get("kinds") or [content]
    for limited in limits if "memory_bytes" in limits[0] else []:
        limited["memory_bytes"] = max(1, int(limited["memory_bytes"] * factor))
    return problem(name).load(content, name), content


@pytest.mark.parametrize("name", checker().PROBLEMS)
def test_nothing_that_fits_is_proven_not_to(name: str) -> None:
    proven, none, some = 0, 0, 0
    for seed in range(12 if name == "memory-switches" else 60):
        instance, content = scarce(name, seed)
        least = (
            least_step_ns(instance) if name == "joint" else optimum(instance) if name in CHAINS else solve(instance).objective
        )
        infeasible = checker().PROBLEMS[name].infeasible(content)
        assert not infeasible or least is None
        proven, none, some = proven + infeasible, none + (least is None), some + (least is not None)
    print(f"{name}: {proven} of {none} instances proven infeasible, {some} feasible")
    assert some > 2
    assert proven == none or name in ("joint", "cluster-strategy")
