"""Lines of keys: where each key of a YAML, JSON or TOML file stands."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.lines import lines_of, text_lines
from trainplan.execution.launch_files.run_configuration import flattened

WORDS = st.text("abcdefgh_", min_size=1, max_size=6)
PLAIN = st.integers() | st.booleans() | st.lists(st.integers(), max_size=3) | st.text("xyz =[]{}#:'\"", max_size=8)
TABLES = st.recursive(
    st.dictionaries(WORDS, PLAIN, min_size=1, max_size=4),
    lambda inner: st.dictionaries(WORDS, PLAIN | inner, min_size=1, max_size=4),
)


def test_lines_of_nested_keys_and_items_of_lists(tmp_path: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# comment\nmodel:\n  layers: 4\n\n  sizes: [1, 2]\nlist:\n- name: x\n- name: y\n")
    assert lines_of(path) == {
        "model": 2, "model.layers": 3, "model.sizes": 5, "model.sizes[0]": 5, "model.sizes[1]": 5,
        "list": 6, "list[0]": 7, "list[0].name": 7, "list[1]": 8, "list[1].name": 8,
    }  # fmt: skip


def test_lines_of_json_with_tabs() -> None:
    assert text_lines('{\n\t"a": 1,\n\t"b": {"c": 2,\n\t\t"d": 3}\n}') == {"a": 2, "b": 3, "b.c": 3, "b.d": 4}


def test_lines_of_toml_with_tables_dots_and_values_over_lines() -> None:
    text = '''# one
title = "x"
[a.b]
k = [
  "z = 1",  # not a key
  2,
]
t = """
[no.table]
u = 3
"""
c.d = {e = 1}
["q r"]
f = 2
[[g]]
h = 1
[[g]]
h = 2
'''
    assert text_lines(text, toml=True) == {
        "title": 2, "a.b": 3, "a.b.k": 4, "a.b.t": 8, "a.b.c": 12, "a.b.c.d": 12, "a.b.c.d.e": 12,
        "q r": 13, "q r.f": 14, "g[0]": 15, "g[0].h": 16, "g[1]": 17, "g[1].h": 18,
    }  # fmt: skip


def test_merged_keys_have_the_line_where_they_are_written() -> None:
    text = "base: &b\n  x: 1\n  y: 2\nrun:\n  <<: *b\n  y: 3\n"
    assert text_lines(text)["run.x"] == 2 and text_lines(text)["run.y"] == 6


def test_what_is_no_file_of_keys_has_no_lines(tmp_path: Any) -> None:
    assert lines_of(tmp_path / "absent.yaml") == {}
    for text in ("a: &a\n  b: *a\n", "a: [1", "\0", "", "- - - 3", "[" * 5000):
        assert "b" not in text_lines(text)
    bomb = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40))
    assert text_lines(bomb) == {}


@settings(max_examples=60, deadline=None)
@given(TABLES)
def test_every_key_that_is_written_has_the_line_that_names_it(table: dict[str, Any]) -> None:
    for text in (yaml.safe_dump(table), json.dumps(table, indent=1), json.dumps(table, indent="\t")):
        made, lines = text_lines(text), text.splitlines()
        for key in flattened(table):
            assert key.rpartition(".")[2] in lines[made[key] - 1]
