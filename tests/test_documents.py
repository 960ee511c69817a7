"""README and docs: every link leads somewhere, every command is one, the guides' commands run in their order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

import trainplan as tp
from tests.command.calls import call
from trainplan.command.app import application

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def name(path: Path) -> str:
    """A page's name in test ids."""
    return path.relative_to(ROOT).as_posix()


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each trainplan command in a page's shell blocks."""
    for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "trainplan":
                yield words[1:]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_are_commands(path: Path) -> None:
    for words in commands(path):
        command = typer.main.get_command(application(words))
        with command.make_context("trainplan", list(words)) as context:
            while hasattr(command, "resolve_command"):
                _, command, words = command.resolve_command(context, [*words])
                assert command is not None
                context = command.make_context(command.name, [*words], parent=context)


def test_every_page_is_in_the_navigation_once() -> None:
    listed: list[str] = re.findall(r"[\w./-]+\.md", yaml.dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in PAGES if "docs" in page.parts)


def test_every_public_name_is_in_the_reference_once() -> None:
    listed = re.findall(r"^      heading: tp\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(tp.__all__)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.long
@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_guides_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = 0
    for words in commands(path):
        done = call(*words)
        assert done.returncode == 0, (words, done.stderr)
        ran += 1
    assert ran > 3
