"""Layout strings of Megatron-Core's pipelines: cases of its own unit and functional tests (core 0.20, 2026), round trips, and
plans that are read, exported and read back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from trainplan.execution.runtimes.export_common import write_export
from trainplan.execution.runtimes.megatron.layouts import example, fault, of_lists, parsed, written

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from tests.runtimes.test_exporting import parsed_layout
from tests.runtimes.test_importing import LLAMA
from trainplan.imported_runs.to_plan import read

E, T, M, L = ["embedding"], ["decoder"], ["mtp"], ["loss"]
STAGES = "--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 32 --use-distributed-optimizer"
LAYOUT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("text", "lists"),  # test_transformer_block.py, test_pipeline_layout.py
    [
        ("Et|t*4|t|tL", [E + T, T * 4, T, T + L]),
        ("E|t*6|t|L", [E, T * 6, T, L]),
        ("E|t|t*2|t||(t|)*2,t*2,L", [E, T, T * 2, T, [], T, T, T * 2 + L]),
        ("E|t*3|(t|)*5mL", [E, T * 3, *[T] * 5, M + L]),
        ("E|t*3|(t|)*4tm|L", [E, T * 3, *[T] * 4, T + M, L]),
        ("E|t*3|(t|)*3tt|m|L", [E, T * 3, *[T] * 3, T * 2, M, L]),
        ("Et*3|(tt|)*29,m|L", [E + T * 3, *[T * 2] * 29, M, L]),  # its documentation
        ("Et*4|(t*4|)*14tmL", [E + T * 4, *[T * 4] * 14, T + M + L]),
        ("Et*2|(tt|)*5t|tmL", [E + T * 2, *[T * 2] * 5, T, T + M + L]),  # functional tests
    ],
)
def test_strings_and_lists_of_its_tests_say_the_same(text: str, lists: list[list[str]]) -> None:
    assert parsed(text) == parsed(of_lists(lists)) == parsed_layout(text)
    assert parsed(written(parsed(text))) == parsed(text) == parsed_layout(written(parsed(text)))
    upper = [[f" {part.upper()} " for part in stage] for stage in lists]
    assert of_lists(upper) == of_lists(lists)


@pytest.mark.parametrize(
    ("lists", "pp", "words"),  # what TransformerConfig takes or not, of 7 layers
    [
        ([T * 6, T + L], 2, "E"),
        ([E + T * 6, T], 2, "L"),
        ([E, ["invalid_type"] * 7 + L], 2, "invalid_type"),
        ([E, T * 7, L], 2, "3 stages"),
        ([[E + T, T * 4], T, T + L], 2, "embedding"),
        ([E + T, T * 4, T, T + L], 2, ""),
        ([E, T * 6, T, L], 2, ""),
        ([E, T * 7, [], L], 2, "empty"),  # which it takes, and plans do not have
        ([E + T * 7, [*L, *L]], 2, "2 times"),
        ([E + T * 8, L], 2, "8 layers"),
        ([E + T * 7 + M, L], 2, "multi-token"),
        ([E + T * 3, T * 4 + L], 1, "interleaves"),
    ],
)
def test_what_it_refuses_is_refused(lists: list[Any], pp: int, words: str) -> None:
    problem = fault(parsed(of_lists(lists)), pp, 7)
    assert (words in problem) if words else not problem


@pytest.mark.parametrize(
    ("text", "pp", "legal"),  # one layer of multi-token prediction, of 8 layers
    [
        ("E|t*3|(t|)*5mL", 4, True),
        ("E|t*3|(t|)*4tm|L", 4, True),
        ("E|t*3|(t|)*3tt|m|L", 4, True),
        ("Et*8m|L", 2, True),  # a rank whose last stage it is
        ("Et*3|tm|(t|)*2t|tL", 2, False),
        ("Et*4|t*3m|tL", 3, False),
        ("Et*4|t*2m|t*2mL", 3, False),
    ],
)
def test_layers_of_multi_token_prediction_are_where_they_may_be(text: str, pp: int, legal: bool) -> None:
    assert (not fault(parsed(text), pp, 8, 1)) == legal and fault(parsed(text), pp, 8, 0)


PERIOD = st.lists(st.sampled_from(["t", "tt", "ttt", "t" * 11]), min_size=1, max_size=3)


@given(st.lists(st.tuples(PERIOD, st.integers(1, 5)), max_size=4), st.integers(0, 6), st.integers(0, 6), st.integers(0, 2))
def test_written_strings_are_read_as_the_same_stages(
    blocks: list[tuple[list[str], int]], first: int, last: int, predicted: int
) -> None:
    inner = [stage for period, count in blocks for stage in period * count]
    stages = ["E" + "t" * first, *inner, "t" * last + "m" * predicted + "L"]
    text = written(stages)
    assert parsed(text) == parsed_layout(text) == stages
    assert len(text) <= len(re.sub(r"t{3,}", lambda run: f"t*{len(run[0])}", "|".join(stages)))
    assert fault(stages, len(stages), "".join(stages).count("t"), predicted) == ""


@given(st.integers(1, 70), st.integers(1, 16), st.integers(0, 70), st.integers(0, 2))
def test_what_advice_gives_is_legal(stages: int, pp: int, layers: int, predicted: int) -> None:
    text = example(stages, pp, layers, predicted)
    assert bool(text) == (pp <= layers + 2)
    assert not text or fault(parsed_layout(text), pp, layers, predicted) == ""


def test_huge_products_are_no_layouts() -> None:
    for text in ("Et*99999999999L", "E(t|)*99999999L", "(t*9999|)*9999L", "E" + "(t|)*99999" * 3 + "L"):
        assert fault(parsed(text), 2, 32)


@pytest.mark.parametrize(
    ("layout", "cuts", "chunks"),
    [
        ("Et*3|(t*4|)*6,t*5L", (7, 15, 23, 31, 39, 47, 55), 2),
        ("E|(tt|)*9t*14|L", (1, *range(5, 38, 4), 65), 3),
    ],
)
def test_uneven_stages_are_read_exported_and_read_back(tmp_path: Path, layout: str, cuts: tuple[int, ...], chunks: int) -> None:
    (tmp_path / "run.txt").write_text(f"{LLAMA} {STAGES} {LAYOUT} {layout}")
    run = tp.import_run(tmp_path / "run.txt", cluster="h100:8", search=False, memory=2**40)
    assert (run.configuration.cuts, run.configuration.chunks, run.plan.chunks) == (cuts, chunks, chunks)
    for target, file in (("megatron", "launch.sh"), ("megatron-bridge", "bridge.yaml")):
        (tmp_path / target).mkdir()
        made = tp.export(run.plan, target)
        write_export(made, tmp_path / target)
        back = tp.import_run(tmp_path / target / file, cluster="h100:8", search=False, memory=2**40)
        assert back.plan.stages == run.plan.stages and back.plan.schedule == run.plan.schedule
    words = tp.export(run.plan, "megatron").settings["arguments"]
    model = yaml.safe_load((tmp_path / "megatron-bridge" / "bridge.yaml").read_text())["model"]
    assert words[words.index(LAYOUT) + 1] == model["pipeline_model_parallel_layout"] == layout.replace(",", "")


@pytest.mark.parametrize(
    ("layout", "field", "problem", "fix"),
    [
        ("Et*3|(t*4|)*6,t*5|L", LAYOUT, ("9 stages", 4), "Et*4|(t*4|)*6t*4L"),
        ("Et*8|t*8|t*8|t*7L", LAYOUT, (31, 32), "Et*8|t*8|t*8|t*8L"),
        ("Et*8|t*8|t*8|t*8mL", LAYOUT, "multi-token prediction", "Et*8|t*8|t*8|t*8L"),
        ("Et*8|t*8|t*8|t*8d", LAYOUT, ("'d'", "m"), "Et*8|t*8|t*8|t*8L"),
        (
            "Et*8|t*8|t*8|t*8L --num-virtual-stages-per-pipeline-rank 2", "--num-virtual-stages-per-pipeline-rank",
            (2, LAYOUT, 1), 1,
        ),
        (
            "Et*8|t*8|t*8|t*8L --decoder-last-pipeline-num-layers 8", "--decoder-last-pipeline-num-layers", (8, LAYOUT),
            "leave",
        ),
    ],
)  # fmt: skip
def test_illegal_strings_are_refused_with_one_that_works(
    tmp_path: Path, layout: str, field: str, problem: Facts, fix: Facts
) -> None:
    path = tmp_path / "run.txt"
    path.write_text(f"{LLAMA} {STAGES} {LAYOUT} {layout}")
    with refused(field, where=path, problem=problem, fix=fix):
        read(path)


def test_lists_of_a_recipe_are_read(tmp_path: Path) -> None:
    """As recipes of Megatron-Bridge write them: sums of products of lists."""
    lines = (
        "cfg.model.pipeline_model_parallel_size = 2",
        "cfg.model.pipeline_model_parallel_layout = [E + 7 * T, T * 9, T * 16 + L]",
    )
    imported = "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config"
    text = f"{imported}\nE, T, L = ['embedding'], ['decoder'], ['loss']\ndef config():\n    cfg = llama3_8b_pretrain_config()\n"
    path = tmp_path / "recipe.py"
    path.write_text(text + "".join(f"    {line}\n" for line in lines) + "    return cfg\n")
    with refused("model.pipeline_model_parallel_layout", problem="3 stages", fix="Et*16|t*16L"):
        read(path)
    path.write_text(path.read_text().replace("T * 16 + L", "T * 10, T * 6 + L"))
    assert (read(path).cuts, read(path).chunks) == ((15, 33, 53), 2)
