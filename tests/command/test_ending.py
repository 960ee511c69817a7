"""How the command ends where standard output takes nothing, or an interrupt comes while it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command.test_command import COMMAND

FULL = Path("/dev/full")
INTERRUPTED = """
import sys
module = sys.argv.pop(1)
class Interrupts:
    def find_spec(self, name, *rest):
        if name == module:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from trainplan.command import main
main()
"""


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", ["model list", "schema plan", "--help", "plan --model nothing --json"])
def test_a_full_standard_output_is_bad_output(words: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("trainplan: standard output: cannot be written (No space") and done.stderr.count("\n") == 1


def test_a_closed_standard_output_is_bad_output() -> None:
    words = " ".join([*COMMAND, "model list >&-"])
    done = subprocess.run(words, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("trainplan: standard output: cannot be written") and done.stderr.count("\n") == 1


def test_a_closed_standard_error_leaves_the_output() -> None:
    words = " ".join([*COMMAND, "plan --model nothing --json 2>&-"])
    done = subprocess.run(words, shell=True, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stdout.startswith("{") and done.stdout.endswith("}\n")


@pytest.mark.parametrize("module", ["trainplan.command.ending", "trainplan.command.app", "trainplan.command.catalogue"])
def test_an_interrupt_during_imports_is_reported(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "model", "list"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "trainplan: interrupted\n")
