"""Model families by name: trainplan's own are imported when used, and other packages add theirs by entry points."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest
from trainplan.profiling.base.plugins import plugins
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.families import GROUP, Family, Fields, Unit, family_names, uniform_chain
from trainplan.profiling.models.model import load_model, model_from_config, model_from_shape
from trainplan.profiling.models.sublayers import FeedForward, LanguageHead, TokenEmbedding

from tests.helpers.refusals import refused
from tests.helpers.small_models import estimate


def mixer(fields: Fields) -> tuple[list[Unit], bool]:
    """A family without attention."""
    hidden, layers, vocabulary = fields.count("width"), fields.layers("depth", 2), fields.count("vocabulary", 64)
    common = fields.common(1e-5) | {"tokens": fields.length("positions", 32), "hidden": hidden}
    parts = {"ffn": FeedForward(**common, inner=2 * hidden)}
    embedding, head = TokenEmbedding(**common, vocabulary=vocabulary), LanguageHead(**common, vocabulary=vocabulary)
    return uniform_chain(embedding, layers, parts, head), False


FAMILY = Family(mixer)


@pytest.fixture
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment in which some package has the entry point `mixer`, and one that takes the name of a built-in family."""
    entries = [EntryPoint(name, f"{__name__}:FAMILY", GROUP) for name in ("mixer", "gpt2")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if group == GROUP else [])
    plugins.cache_clear()
    yield
    plugins.cache_clear()


@pytest.mark.usefixtures("plugged_in")
def test_an_entry_point_adds_a_family() -> None:
    assert family_names()[-1] == "mixer" and family_names().count("gpt2") == 1
    model = model_from_config({"model_type": "mixer", "width": 16}, "config.json")
    assert [unit.kind for unit in model.units] == ["embedding", "ffn", "ffn", "head"] and model.layers == 2
    assert model.config == {"model_type": "mixer", "width": 16, "depth": 2, "vocabulary": 64}
    assert model_from_shape(model.shape(), "plan.json") == model
    assert estimate(model, load_cluster("cpu-4"), 2, 4).described_model == model
    with refused("width"):
        model_from_config({"model_type": "mixer"}, "config.json")
    with refused("scale_down", problem=(2, "mixer"), fix=("gpt2", "bert", "llama")):
        model.scaled(2)


@pytest.mark.usefixtures("plugged_in")
def test_built_in_families_go_before_plug_ins_of_their_name() -> None:
    assert load_model("gpt2").layers == 12


def test_a_family_that_no_package_has_is_refused() -> None:
    with refused("model_type", problem="mixer", fix=("gpt2", "bert", "llama", "t5", "vit", "swin", "transgan")):
        model_from_config({"model_type": "mixer", "width": 16}, "config.json")


def test_only_the_family_in_use_is_imported() -> None:
    code = (
        "import sys; from trainplan.profiling.models.model import load_model; load_model('gpt2'); "
        "print(*(name for name in sys.modules if name.startswith('trainplan.profiling.models.families.')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    common = {"class_defaults", "classes", "decoder", "fields", "naming", "unread"}
    assert {name.rpartition(".")[2] for name in printed.split()} == {"gpt2", *common}
