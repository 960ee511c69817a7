"""README and docs: every link leads somewhere, every command is one, the guides' commands run in their order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import typer
import yaml

import trainplan as tp
from docs.pages import notebook_page
from tests.helpers import guides
from tests.helpers.calls import call
from tests.helpers.sizes import WHOLE
from trainplan.command.app import application

ROOT = Path(__file__).parents[1]
REPEATED = {ROOT / "docs" / "index.md", guides.CHANGES}  # whose first command is the README's
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


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


def notebook(page: Path) -> Path:
    """The notebook that is shown as a page of the site."""
    return ROOT / "notebooks" / page.with_suffix(".ipynb").name if page.parent.name == "notebooks" else page


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists() or notebook(path.parent / target).exists(), target


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
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.is_relative_to(ROOT / "docs")]
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert sorted(navigation()) == sorted(pages + notebooks)


def navigation() -> list[str]:
    """The pages of the site, in order."""
    listed: list[str] = re.findall(r"[\w./-]+\.md", yaml.dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    return listed


def test_assistants_find_every_page_in_the_index() -> None:
    """llms.txt has the form of llmstxt.org: a title, a summary, and sections of links with a line each."""
    text = (ROOT / "llms.txt").read_text()
    assert re.match(r"# trainplan\n\n(> .+\n)+\n", text)
    entries = re.findall(r"^- \[([^\]]+)\]\(docs/([^)]+)\): (.{20,})$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^- ", text, re.MULTILINE))
    assert sorted(page for _, page, _ in entries) == sorted(
        entry for entry in navigation() if not entry.startswith("notebooks/")
    )


def test_a_notebook_becomes_a_page() -> None:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path)
        assert text.startswith("# ") and "```python" in text and pictures
        assert all(f"]({name})" in text and data.startswith(b"\x89PNG") for name, data in pictures.items())


def test_every_public_name_is_in_the_reference_once() -> None:
    listed = re.findall(r"^      heading: tp\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(tp.__all__)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_first_screens_have_no_placeholder() -> None:
    """Commands copied from the first screens run, once REPOSITORY is set."""
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert not re.search(r"<[a-z-]+>|example\.(com|org)|YOUR_|your-", page.read_text())


@pytest.mark.parametrize("path", guides.GUIDES, ids=name)
def test_every_command_of_a_guide_has_its_output(path: Path) -> None:
    found = [block for block in guides.blocks(path.read_text()) if block.commands]
    assert len(found) > 3
    for block in found:
        assert block.output, block.commands


def test_blocks_of_a_page_are_found_with_their_outputs() -> None:
    text = "```sh\nmake x\ntrainplan a \\\n  --b  # c\n```\n\nprints\n\n```text\nFITS\n```\n"
    text += "```sh\ntrainplan d\n```\n```python\n1\n```\n"
    first, second = guides.blocks(text)
    assert first.commands == [["a", "--b"]] and text[slice(*first.span)] == first.output == "FITS\n"
    assert second.commands == [["d"]] and second.output is None


def test_outputs_are_alike_but_for_times() -> None:
    assert guides.comparable("step 1  loss 2, 3.4 s measured\nplanning 3 s") == guides.comparable(
        "step 1  loss 2, 9 s measured"
    )
    assert guides.comparable("step 1  loss 9.8e-16, 3.4 s") == guides.comparable("step 1  loss 9.7e-16, 12 s")
    assert guides.comparable("  label-setting  1.182 s  0.117") == guides.comparable("  label-setting  1.182 s  2.5")
    assert guides.comparable("FITS 3 GiB") != guides.comparable("FITS 4 GiB")


def test_pages_show_one_answer_to_one_command() -> None:
    """But for the files that it is told to write."""
    shown, met = dict[str, list[str]](), 0
    for page in guides.PAGES:
        for block in guides.blocks(page.read_text()):
            if len(block.commands) == 1 and block.commands[0][0] == "plan" and block.output is not None:
                command = re.sub(r" (-o|--picture) \S+", "", shlex.join(block.commands[0]))
                lines = [line for line in guides.comparable(block.output) if not line.startswith("written ")]
                met += command in shown
                assert shown.setdefault(command, lines) == lines, (page, command)
    assert met


def in_time(words: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """Run a command of a page, by a fork of a warm process; a search that shows all within its usual 30 s has time enough on a
    busy machine, too."""
    more = ["--time-limit", "600"] if words[0] == "plan" and "--time-limit" not in words else []
    return call(*words, *more, folder=folder, columns=guides.COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize("path", [page for page in guides.PAGES if WHOLE or page not in REPEATED], ids=name)
def test_pages_show_what_their_commands_print(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands run; after a change of what they print, `python -m tests.helpers.guides` writes the pages anew. Pages whose
    commands are mostly those of others are left to `make test-all`."""
    monkeypatch.setattr(guides, "PICTURES", {})
    made = guides.written(path, in_time)
    assert guides.comparable(made) == guides.comparable(path.read_text())
