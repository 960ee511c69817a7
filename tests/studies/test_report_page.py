"""The page of a study: that it needs no network, that its numbers are those of the rows, hostile texts, and the page in
headless Chromium."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from tests.helpers.studies import small_study, write_study
from trainplan.reports import study as reports
from trainplan.studies.results import Study
from trainplan.tabular import cell_text

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=3000"]
CATCH = '<script>window.wrong = []; addEventListener("error", (event) => window.wrong.push(event.message));</script>'
PROBE = """<script>addEventListener("load", () => {
  const table = document.querySelector("#cells table"), heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex((head) => head.textContent === "value");
  const values = () => [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[column].dataset.value);
  heads[column].querySelector("button").click();
  const ascending = values();
  heads[column].querySelector("button").click();
  const descending = values();
  const filter = document.getElementById("filter");
  filter.value = "pipeline refused";
  filter.dispatchEvent(new Event("input"));
  const page = document.documentElement, text = document.querySelector(".pictures svg text");
  const over = [...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll table") && !one.closest("svg")
    && one.getBoundingClientRect().right > page.clientWidth + 1).map((one) => one.outerHTML.slice(0, 90));
  const found = { ascending, descending, filtered: values().length, over, wide: page.scrollWidth - page.clientWidth,
    errors: window.wrong, back: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(text).fill };
  parent.postMessage(`found:${btoa(JSON.stringify(found))}:`, "*");
});</script>"""


@cache
def study() -> Study:
    with TemporaryDirectory() as folder:
        return tp.read_study(write_study(Path(folder), small_study()))


@cache
def written() -> str:
    with TemporaryDirectory() as folder:
        return tp.read_study(write_study(Path(folder), small_study())).report()


class _Page(HTMLParser):
    """What a page loads, and the texts of its tables by section and row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.pictures: list[str] = []
        self._section, self._cell = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        loads = [values.get(name) or "" for name in ("src", "href", "xlink:href", "srcset", "poster", "action", "data")]
        self.sources += [url for url in loads if url and not url.startswith(("#", "data:"))]
        if tag == "section":
            self._section = values["id"] or ""
        if tag == "svg":
            self.pictures.append(values["aria-label"] or "")
        if tag == "tr":
            self.tables.setdefault(self._section, []).append([])
        if tag in ("td", "th"):
            self.tables[self._section][-1].append("")
        self._cell = tag in ("td", "th") or (self._cell and tag == "button")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[self._section][-1][-1] += data


def test_the_page_needs_no_other_file_and_no_network() -> None:
    page = _Page(written())
    assert page.sources == []
    assert not re.search(r"@import|url\((?!#)|https?:", written())
    assert len(page.pictures) == len(set(page.pictures)) >= 6


def test_numbers_of_the_page_are_those_of_the_rows() -> None:
    page, rows = _Page(written()), [row for row, _ in small_study()]
    heads, *cells = page.tables["cells"]
    assert len(cells) == len(rows)
    for texts, row in zip(cells, rows, strict=True):
        values = dict(zip(heads, texts, strict=True))
        assert (values["cell"], values["status"]) == (row["name"], row["status"])
        for heading, field in (("value", "value_ns"), ("bound", "bound_ns"), ("gap", "gap"), ("seconds", "seconds")):
            assert values[heading] == cell_text(field, row[field]), (heading, row["name"])
    headings, *sums = page.tables["summary"]
    assert headings == list(study().summary().headings.values())
    assert sums == study().summary().cells()
    _, *failed = page.tables["failures"]
    assert [(texts[0], int(texts[1])) for texts in failed] == [(f["status"], f["cells"]) for f in study().failures()]
    assert all((failure["reason"] or "–") == texts[2] for failure, texts in zip(study().failures(), failed, strict=True))


def test_identifiers_of_pictures_are_distinct() -> None:
    identifiers = re.findall(r'<[^>]* id="([^"]+)"', written())
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'(?:xlink:href="#|url\(#)([\w-]+)', written())) <= set(identifiers)


def test_colours_of_letters_and_axes_are_those_of_the_page() -> None:
    pictures = re.findall(r"<svg.*?</svg>", written(), flags=re.DOTALL)
    assert pictures and not any("#000000" in picture for picture in pictures)
    assert all("var(--ink)" in picture for picture in pictures if "Heat map" not in picture)  # which has no axes


def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = "</script><script>alert('&1')</script>"
    rows = [
        (row | {"name": f"{name} {index}", "model": name, "reason": name}, []) for index, (row, _) in enumerate(small_study())
    ]
    page = tp.report(write_study(tmp_path, rows))
    assert "<script>alert" not in page and "&lt;/script&gt;&lt;script&gt;alert" in page
    assert page.count("</script>") == 1


def test_contradictions_are_on_the_page(tmp_path: Path) -> None:
    row = next(row for row, _ in small_study() if row["status"] == "optimal")
    other = row | {"key": "f" * 32, "name": "cheat", "method": "cheat", "value_ns": row["value_ns"] - 1, "bound_ns": None}
    page = tp.report(write_study(tmp_path, [(row, []), (other, [])], journal=1))
    assert 'class="wrong"' in page and "cheat" in page
    assert 'class="wrong"' not in written()


def test_a_long_table_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reports, "MOST_CELLS", 3)
    page = tp.report(write_study(tmp_path, small_study()))
    assert len(_Page(page).tables["cells"]) == 4 and f"The first 3 of {len(small_study())} cells" in page


def test_a_study_of_one_cell_has_a_page_without_pictures(tmp_path: Path) -> None:
    row = next(row for row, _ in small_study() if row["status"] == "optimal")
    page = tp.report(write_study(tmp_path, [(row, [])], journal=1))
    assert _Page(page).pictures == [] and page.count("Not drawn") == 5 and len(_Page(page).tables["cells"]) == 2


def test_the_command_writes_the_page_of_a_folder(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "a study", small_study())
    done = call("report", folder, "-o", tmp_path / "page.html", "--json")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert json.loads(done.stdout) == {
        "study": str(folder),
        "report": str(tmp_path / "page.html"),
        "bytes": len(page.encode()),
    }
    assert f"trainplan report &#39;{folder}&#39; -o report.html" in page
    with refused("compare"):
        tp.report(folder, compare=True)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False)])
def test_the_page_in_a_browser(width: int, dark: bool, tmp_path: Path) -> None:
    """No script fails, nothing reaches beyond the page's edge, tables are sorted and filtered, and letters follow the theme."""
    page = written().replace("<head>", f"<head>{CATCH}").replace("</body>", f"{PROBE}</body>")
    (tmp_path / "page.html").write_text(page)
    report = "addEventListener('message', (e) => document.body.append(e.data))"
    frame = f'<script>{report}</script><iframe src="page.html" style="border:0;width:{width}px;height:900px"></iframe>'
    (tmp_path / "frame.html").write_text(frame)
    theme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    words = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", theme, "--dump-dom"]
    done = subprocess.run(
        [*words, (tmp_path / "frame.html").as_uri()], capture_output=True, text=True, check=False, timeout=120
    )
    match = re.search(r"found:([\w+/=]+):", done.stdout)
    assert match is not None, done.stdout[-500:] + done.stderr[-500:]
    found = json.loads(base64.b64decode(match[1]))
    assert found["errors"] == [] and found["over"] == [] and found["wide"] <= 0
    numbers = [int(value) for value in found["ascending"] if value]
    assert numbers == sorted(numbers) and [int(v) for v in found["descending"] if v] == numbers[::-1]
    assert (
        found["ascending"][len(numbers) :] == [""] * (len(small_study()) - len(numbers)) == found["descending"][len(numbers) :]
    )
    assert found["filtered"] == 1
    assert (found["back"], found["ink"]) == (
        ("rgb(20, 23, 27)", "rgb(232, 234, 237)") if dark else ("rgb(255, 255, 255)", "rgb(26, 29, 33)")
    )
