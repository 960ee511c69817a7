"""Declarations of fields: what is written is what is read; and lists of known keys are read as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.fields import Field, flag, nested, sections_of, text, values_of, whole
from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import KeyReader
from trainplan.execution.runtimes.accelerate import fields as accelerate_fields
from trainplan.execution.runtimes.deepspeed import fields as deepspeed_fields
from trainplan.execution.runtimes.megatron import fields as megatron_fields
from trainplan.execution.runtimes.megatron_bridge import fields as megatron_bridge_fields
from trainplan.execution.runtimes.megatron_bridge import reader as megatron_bridge_reader
from trainplan.execution.runtimes.registry import BUILT_IN
from trainplan.execution.runtimes.torchtitan import fields as torchtitan_fields
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.optimizers import OPTIMIZERS

TABLES: dict[str, dict[str, Field]] = {
    "megatron": megatron_fields.ARGUMENTS,
    "torchtitan": torchtitan_fields.FIELDS,
    "deepspeed": deepspeed_fields.FIELDS,
    "accelerate": accelerate_fields.FIELDS,
}


@pytest.mark.parametrize("runtime", TABLES)
def test_words_that_are_written_are_read_as_the_plans(runtime: str) -> None:
    for name, field in TABLES[runtime].items():
        for word in set((field.words or {}).values()):
            keys = KeyReader("file", {name: field.spelt(word)}, fields={name: field})
            assert field.kind != "text" or keys.word(name) == word
            assert field.words is not None and field.words[field.spelt(word)] == word
        assert not (field.choices and field.default) or field.default in field.choices


def test_a_field_says_its_default_its_choices_and_what_is_written() -> None:
    table = (
        whole("size.tp", 1, lambda degree: degree if degree > 1 else None),
        text("kind", "ring", lambda degree: "heads", choices=("ring", "all"), words={"ring": "keys", "all": "heads"}),
        flag("on", lambda degree: degree),
    )
    assert values_of(table, 2) == {"size.tp": 2, "kind": "all", "on": True}
    assert values_of(table, 1) == {"kind": "all", "on": True}
    keys = KeyReader("file", {"kind": "mesh"}, fields={field.name: field for field in table})
    assert (keys.whole("size.tp"), keys.whole("size.tp", None), keys.flag("on")) == (1, None, False)
    with pytest.raises(InputError, match="ring"):
        keys.word("kind")
    with pytest.raises(AssertionError, match=r"size\.tp is declared as whole"):
        keys.flag("size.tp")
    values = {"a": 1, "b.c.d": 2, "b.c.e": 3}
    assert nested(values) == {"a": 1, "b": {"c": {"d": 2, "e": 3}}}
    assert sections_of(values) == {"": {"a": 1}, "b.c": {"d": 2, "e": 3}}


def test_lists_of_known_keys_have_comments_sections_and_beginnings(tmp_path: Path) -> None:
    (tmp_path / "reader.keys").write_text("# Of a tool.\nseed log.*\n\n[model]\nname data_*\n")
    known = known_keys(str(tmp_path / "reader.py"))
    assert (known.names, known.starts) == ({"seed", "model.name"}, ("log.", "model.data_"))
    assert known.has("log.level") and known.has("model.data_path") and not known.has("name")
    assert known.more(["name"]).has("name")
    with pytest.raises(InputError, match="num_layers"):
        KeyReader("file", {"num_layers": 2}).left(known)


def test_fields_of_megatron_bridge_are_those_of_its_classes() -> None:
    for fields in (*megatron_bridge_fields.FIELDS.values(), megatron_bridge_fields.CONTRARY.values()):
        assert all(megatron_bridge_reader.KNOWN.has(field) for field in fields)


def test_every_runtime_that_is_exported_to_says_what_it_can_run() -> None:
    assert set(BUILT_IN) <= set(RUNTIMES)
    assert all(RUNTIMES[name].schedules and RUNTIMES[name].features for name in RUNTIMES)


def test_every_optimizer_of_a_runtime_has_a_word_that_is_written_and_read() -> None:
    words = {"megatron": {plans for plans, _ in megatron_fields.STEPPED.values()}, "trainplan": set(OPTIMIZERS)}
    words |= {"megatron-bridge": words["megatron"], "deepspeed": set(deepspeed_fields.STEPPED.values())}
    for name, runtime in RUNTIMES.items():
        assert set(runtime.optimizers) <= words.get(name, set())
