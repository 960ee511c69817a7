"""The model of an imported run: the one that the user or the file names, or the one whose sizes the file has.

Samples may be longer than the positions in a model's configuration: rotary positions continue, as tools compute their angles
for any length; learned positions end with their table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.run_configuration import RunConfiguration, TakenValue
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.imported_runs.device_support import refuse_what_devices_lack
from trainplan.profiling.base.dtypes import parse_dtype
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.families import family
from trainplan.profiling.models.model import Model, load_model, model_from_config
from trainplan.profiling.shipped import mixture

SIZES = {  # by their names in configurations of models
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden units": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "groups of queries": ("num_key_value_heads",),
    "inner units": ("intermediate_size", "n_inner"),
    "entries of the vocabulary": ("vocab_size",),
}
STARTER = "launch.sh"  # as exports name the script that starts a run
PADDED = 0.02  # of a vocabulary, at most, which tools add so that ranks can share it


def model_of(
    configuration: RunConfiguration, name: str | None, sequence: int | None, dtype: str | None, cluster: Cluster | None = None
) -> Model:
    """The model of a run, in the dtype that it trains in and on samples of the run's length.

    name: the user's model or its file, which takes precedence over the model in the run's file. sequence: the user's number
    of tokens per sample. dtype: the user's dtype. cluster: if given, its devices must support what the run needs.
    configuration: the run's values, as read from its file. Raises InputError if the model is not known, or if file and
    options differ.
    """
    tokens = _sample_tokens(configuration, sequence)
    if cluster is not None:
        refuse_what_devices_lack(configuration, cluster)
    if configuration.dtype is not None and dtype is not None and parse_dtype(dtype) != parse_dtype(configuration.dtype):
        problem = f"is {dtype}, and the file has {configuration.dtype}"
        raise InputError(COMMAND_LINE, "--dtype", problem, "leave it out, or change the file")
    dtype = configuration.dtype or dtype
    fields, shipped_name = configuration.config, name or configuration.model
    named = configuration.model
    if named is not None and not Path(named).exists() and (what := mixture(named)) is not None:
        raise configuration.error("model", f"is {named!r}: {what} is not planned yet", "give a dense model")
    if shipped_name is not None:
        half = "bfloat16" if cluster is None else cluster.training_dtype
        model = model_on_samples(configuration, tokens, lambda length: load_model(shipped_name, length, dtype, half)).fused()
        _agreed(configuration, model)
        return model
    if fields is None:
        fix = f"give it, such as llama3-8b or its config.json: {configuration.where} does not describe the model"
        fix += _or_starter(configuration.where)
        raise InputError(COMMAND_LINE, "--model", "is missing", fix)
    if "vocab_size" not in fields:
        tool = configuration.tool or configuration.runtime
        keys = RUNTIMES[tool].vocabulary_keys if tool in RUNTIMES else ""
        fix = "give it, a name or a config.json of the same sizes" + f", or {keys} in the file" * bool(keys)
        problem = f"is missing, and {configuration.where} leaves the size of the vocabulary to its tokenizer"
        raise InputError(COMMAND_LINE, "--model", problem, fix)
    size, multiple = int(fields["vocab_size"]), configuration.vocabulary_multiple
    multiple = 1 if multiple == configuration.tp else multiple  # shares that differ by a row take what padding to tp does
    fields = {**fields, "vocab_size": -(-size // multiple) * multiple}
    name = f"{fields['model_type']}-{configuration.where.rsplit('/', 1)[-1]}"

    def load(length: int | None) -> Model:
        """The model whose sizes the file has, on samples of this length, or of its own if None."""
        return model_from_config(fields, configuration.where, length, dtype or "float32", name)

    return (model_on_samples(configuration, tokens, load) if configuration.runtime == "torchtitan" else load(tokens)).fused()


def _sample_tokens(configuration: RunConfiguration, sequence: int | None) -> int:
    """The number of tokens per sample: the one in the run's file, or else `sequence`, the user's option. configuration: the
    run's values, as read from its file. Raises InputError if both are given and differ, or if neither is.
    """
    tokens = configuration.sequence
    if sequence is not None and tokens not in (None, sequence):
        whose = f", of {configuration.tool}," if configuration.tool else ""
        problem = f"is {sequence}, and {configuration.where}{whose} has {tokens}"
        raise InputError(COMMAND_LINE, "--sequence", problem, "leave it out, or change the file")
    tokens = tokens or sequence
    if tokens is None:
        name = configuration.undecided.get("sequence")
        problem = "does not say it" if name is None else f"leaves it to {name}"
        fix = f"give it: {configuration.where} {problem}{_or_starter(configuration.where)}"
        raise InputError(COMMAND_LINE, "--sequence", "is missing", fix)
    return tokens


def _or_starter(where: str) -> str:
    """The remark that a run's launch script may be given in place of its configuration: what the configuration alone leaves
    open, such as the sequence, stands in files that the script names. where: the configuration's file. Empty if no such
    script lies next to it.
    """
    script = Path(where).with_name(STARTER) if Path(where).is_file() else Path(where)
    return f"; or give {script}, which starts the run" if str(script) != where and script.is_file() else ""


def with_model(configuration: RunConfiguration, model: Model) -> RunConfiguration:
    """The run configuration with communication buffer sizes filled in that transformers' Trainer and Accelerate derive from
    the model's hidden size. configuration: the run's values, as read from its file.
    """
    sizes = configuration.buffers.by_hidden
    buffers = configuration.buffers.for_hidden(model.units[-1].sublayer.hidden)
    source = "by the model's hidden size, as transformers' Trainer and Accelerate fill in 'auto'"
    taken = tuple(TakenValue(f"buffers.{name}", getattr(buffers, name), source) for name, _ in sizes)
    return replace(configuration, buffers=buffers, taken=(*configuration.taken, *taken))


def _agreed(configuration: RunConfiguration, model: Model) -> None:
    """Raise InputError if the run's file describes or names a model whose sizes differ from those of `model`, which the user
    named. configuration: the run's values, as read from its file.
    """
    fields: Mapping[str, Any] = configuration.config or {}
    if configuration.config is None and configuration.model is not None:
        try:
            fields = load_model(configuration.model, 128).config
        except InputError:  # a name that is not shipped, whose sizes nobody knows
            return
    for what, names in SIZES.items():
        written, named = (next((sizes[name] for name in names if sizes.get(name)), None) for sizes in (fields, model.config))
        near = "vocab_size" in names and written and named and abs(written - named) <= PADDED * max(written, named)
        if None not in (written, named) and written != named and not near:
            problem = f"has {written} {what}, and {model.name} has {named}"
            raise configuration.error("model", problem, "give the model that runs, or leave --model out")


def model_on_samples(configuration: RunConfiguration, tokens: int, load: Callable[[int | None], Model]) -> Model:
    """The run's model on samples of `tokens` tokens. If all of its positions are rotary, it is given as many positions as
    needed.

    load: returns the model on samples of a given length, or, for None, on samples as long as its own number of positions.
    configuration: the run's values, as read from its file. Raises InputError, which names the key of the run's file, if the
    model has too few positions and they are learned.
    """
    try:
        return load(tokens)
    except InputError as error:
        if error.where != COMMAND_LINE or error.command_field != "--sequence":
            raise
        field = positions_field(model := load(None))
        if tokens > model.sequence_tokens and field:
            return model.with_fields(sequence=tokens, **{field: tokens})
        if configuration.sequence is None or "sequence" not in configuration.keys:
            raise
        raise configuration.error("sequence", error.problem, error.fix) from None


def positions_field(model: Model) -> str | None:
    """The name of the field of the model's configuration with the number of positions, such as `max_position_embeddings`, if
    all of its positions are rotary, so that the number can be raised; None if they are learned.
    """
    described = family(model.family)
    name = described.sizes.get("positions") if described else None
    turns = any(getattr(unit.sublayer, "rotary", 0) for unit in model.units)
    learned = any(getattr(unit.sublayer, "positions", 0) for unit in model.units)
    return name if turns and not learned else None


def with_positions(configuration: RunConfiguration, name: str | None, model: Model) -> RunConfiguration:
    """The run configuration with a note added if samples are longer than the positions of the named model.

    name: the user's model or its file, which takes precedence over the model in the run's file. model: the model on the
    run's samples. configuration: the run's values, as read from its file.
    """
    named = name or configuration.model
    if named is None or (most := load_model(named).sequence_tokens) >= model.sequence_tokens:
        return configuration
    note = f"positions beyond the model's {most}: {model.name} on samples of {model.sequence_tokens} tokens, turned further"
    return replace(configuration, notes=(*configuration.notes, note))
