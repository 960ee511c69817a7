"""Models on samples longer than the positions in their configurations: rotary positions continue, as tools compute their angles
for any length; learned positions end with their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainplan.execution.launch_files.run_configuration import RunConfiguration
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.models.families import family
from trainplan.profiling.models.model import Model, load_model


def model_on_samples(configuration: RunConfiguration, tokens: int, load: Callable[[int | None], Model]) -> Model:
    """The model on samples of this number of tokens. load: gives the model for a number of tokens, or for its own number of
    positions if None. Raises InputError, naming the file's key for the length, if the model's positions do not reach that
    far."""
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
    """The configuration field with the number of positions, if all positions are rotary; else None."""
    described = family(model.family)
    name = described.sizes.get("positions") if described else None
    turns = any(getattr(unit.sublayer, "rotary", 0) for unit in model.units)
    learned = any(getattr(unit.sublayer, "positions", 0) for unit in model.units)
    return name if turns and not learned else None


def with_positions(configuration: RunConfiguration, name: str | None, model: Model) -> RunConfiguration:
    """The configuration with a note if samples are longer than the positions of the named model. name: a model or its file,
    which takes precedence over the configuration's."""
    named = name or configuration.model
    if named is None or (most := load_model(named).sequence_tokens) >= model.sequence_tokens:
        return configuration
    note = f"positions beyond the model's {most}: {model.name} on samples of {model.sequence_tokens} tokens, turned further"
    return replace(configuration, notes=(*configuration.notes, note))
