"""The package as a whole: what it installs, what importing it costs, and which way its data flows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from setuptools.command.build_py import build_py
from setuptools.config.expand import canonic_package_data
from setuptools.dist import Distribution

import trainplan.api
from tests.helpers.instances import random_instance
from tests.helpers.partition_instances import random_partition

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "trainplan": "trainplan",
    **{f"trainplan.{n}": n for n in ("profiling", "formulations", "solvers", "execution")},
}


def listed() -> list[str]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]


def test_every_folder_with_code_is_listed() -> None:
    found = set()
    for name, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            if "__pycache__" not in path.parts:
                found.add(".".join([name, *path.relative_to(ROOT / folder).parts[:-1]]))
    assert found == set(listed())


def test_type_checkers_read_its_types() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["trainplan"] and (ROOT / "trainplan" / "py.typed").is_file()


def test_lists_of_keys_are_installed_with_every_reader(tmp_path: Path) -> None:
    """Also with the reader of a runtime that package-data does not name: setuptools finds them by one pattern."""
    folder = tmp_path / "runtimes" / "mini"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "reader.keys", "notes.txt"):
        (folder / name).touch()
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    data = canonic_package_data(data)  # as setuptools reads it
    build = build_py(Distribution({"packages": ["mini"], "package_dir": {"mini": str(folder)}, "package_data": data}))
    build.finalize_options()
    build.manifest_files = {}  # as of a tree that is no git checkout
    assert [Path(path).name for path in build.find_data_files("mini", str(folder))] == ["reader.keys"]


def test_profiling_has_no_init() -> None:
    """Python 3.15 has a standard package of that name, which must not be hidden where the checkout is on the path."""
    for name in ("profiling/__init__.py", "__init__.py", "conftest.py"):
        assert not (ROOT / name).exists()


@pytest.mark.long
def test_the_wheel_holds_everything(tmp_path: Path) -> None:
    """Built, installed apart from this checkout, and every module imported from there."""
    site, source = tmp_path / "site", tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "build", "*.egg-info", "demo", ".*_cache"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = ("worker", "accelerate.script", "deepspeed.script", "megatron_bridge.script")  # that need another runtime
    code = (
        f"WRITTEN = {written}\n"
        "import importlib, pkgutil, sys; sys.path.insert(0, sys.argv[1]); import trainplan\n"
        "assert trainplan.__file__.startswith(sys.argv[1]), trainplan.__file__\n"
        "names = [m.name for m in pkgutil.walk_packages(trainplan.__path__, 'trainplan.')]\n"
        "[importlib.import_module(n) for n in names if not n.endswith(WRITTEN)]\n"
        "from trainplan.profiling.shipped import shipped\n"
        "from trainplan.profiling.clusters.nodes import cluster_of_nodes\n"
        "print(len(names), shipped('models'), shipped('clusters'), cluster_of_nodes('mi355x:8').kinds)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code, str(site)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "bert-huge-32" in ran.stdout
    assert "rtx-titan-8" in ran.stdout
    assert "Instinct MI355X 288 GB" in ran.stdout
    modules = {path.relative_to(site).as_posix() for path in (site / "trainplan").rglob("*.py")}
    for name, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            if "__pycache__" not in path.parts:
                assert f"{name.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}" in modules


def test_importing_is_light() -> None:
    code = "import trainplan, sys; print([m for m in ('torch', 'pyomo', 'ortools', 'highspy', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_help_is_light() -> None:
    """It loads what draws it, and neither problems nor solvers nor what reads files."""
    code = (
        "import sys; sys.argv = ['trainplan', '--help']\n"
        "from trainplan.command import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'pydantic', 'pyomo', 'ortools', 'yaml', 'trainplan.api', 'trainplan.formulations')\n"
        "print([m for m in heavy if m in sys.modules], sorted(m for m in sys.modules if m.startswith('trainplan.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, ours = done.stdout.splitlines()[-1].split("] ", 1)
    assert heavy == "[" and len(ours.split()) < 10, ours


@pytest.mark.parametrize("instance", [random_instance(1, 4, 3), random_partition(1, 6, 4, 6)], ids=lambda value: value.problem)
def test_solving_an_instance_loads_its_own_problem_only(instance: Any, tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(instance.to_dict()))
    code = (
        "import sys, trainplan as tp\n"
        "assert tp.solve(sys.argv[1]).status in ('optimal', 'infeasible')\n"
        "definitions = [m.split('.')[-2] for m in sys.modules if m.endswith('.definition')]\n"
        "heavy = [m for m in ('torch', 'matplotlib', 'pyomo', 'ortools', 'highspy') if m in sys.modules]\n"
        "print(*definitions, *heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == instance.problem.replace("-", "_")


def test_problems_and_solvers_load_no_torch() -> None:
    code = (
        "import sys, trainplan as tp\n"
        "instance = tp.build(model='bert-huge-32', cluster='rtx-titan-8', batch=8, memory='8GiB')\n"
        "for method in ('exact', 'cpsat', 'milp', 'galvatron-dp'): tp.solve(instance, method, time_limit=20)\n"
        "assert 'torch' not in sys.modules\n"
        "tp.plan(model='gpt2', cluster='cpu-4', batch=8, memory='2GiB', sequence=64)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_checkout_works_as_working_directory() -> None:
    """A REPL or notebook started in the checkout finds the sub-packages next to `trainplan/`."""
    code = "import trainplan.profiling.models.model, trainplan.solvers.core.solve"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_name_of_the_api_is_that_of_a_module() -> None:
    """A submodule that is imported becomes an attribute of its package, and would hide the function of that name."""
    modules = {path.stem for path in (ROOT / "trainplan").iterdir()}
    assert not modules & set(trainplan.api.NAMES)
