"""The method of docs/extending.md, as it is printed there: its package installed, its own test and its commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
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
