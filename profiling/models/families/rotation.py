"""Rotary positions of a configuration: the base of their angles, the part of each head that they turn, and the stretching of
the angles for long sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.profiling.base.errors import shown
from trainplan.profiling.models.families.fields import Fields, names
from trainplan.profiling.models.sublayers import RotaryScaling


def rotation(
    fields: Fields,
    positions: int,
    tokens: int,
    width: int,
    part: float | None = None,
    base: float = 10000.0,
    called: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> dict[str, Any]:
    """Read the rotary positions of a configuration, as keyword arguments of `Attention`: rotary, scaling and rotary_width.

    positions: the longest sequence of the model, in tokens. tokens: tokens per sample. width: size of a head. part: for
    families that turn a part of each head, the share that is turned if the configuration states none; None for families that
    turn all of it. base: the base of the angles if the configuration states none. called: the names of the fields of base and
    part.

    Base, part and stretching are read from `rope_parameters` (transformers 5), or from `rope_scaling` and fields next to it
    (before). Angles are not stretched for `dynamic`, longrope without its factors, and a partial rotation of families that
    have none; a plan with one of these is refused when it runs. Raises InputError for invalid fields.
    """
    theta, rope, kind = _base(fields, base, called[0])
    rotating, name = width, called[1]
    if part is not None:
        if rope.get("partial_rotary_factor") is not None:
            fields.config = {**fields.config, name: rope["partial_rotary_factor"]}
        rotating = int(width * fields.share(name, part, most=1.0 + 1e-9))
    if rotating % 2 or not rotating:
        if part is None:
            raise fields.fail("head_dim", f"is {width}", "give an even number: rotary positions turn pairs")
        problem = f"is {fields.read[name]:g}, which turns {rotating} of each head's {width}"
        raise fields.fail(name, problem, "give a share that is an even number: rotary positions turn pairs")
    scaling = _scaling(fields, rope, kind, positions, tokens, rotating)
    return {"rotary": theta, "scaling": scaling, "rotary_width": rotating if rotating < width else 0}


def _base(fields: Fields, base: float, called: str) -> tuple[float, dict[str, Any], str]:
    """Read the base of the rotary angles. Returns the base, all fields of the configuration's rotation by name, and the kind
    of rotation (one of `ROTATIONS`, such as "yarn").

    base: the value if the configuration states none. called: the name of the field with the base. Raises InputError for
    invalid fields.
    """
    rope: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise fields.fail(name, f"is {shown(value)}", 'give null, or an object such as {"rope_type": "default"}')
        _check_rope(fields, name, value or {}, rope)
        rope |= value or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = "longrope" if kind == "su" else kind  # as Phi-3's first files call it
    kind = "default" if kind == "mrope" else kind  # positions in three dimensions for images, equal for text
    if kind not in ROTATIONS:
        raise fields.fail("rope_parameters.rope_type", f"is {shown(kind)}", f"give one of: {', '.join(ROTATIONS)}")
    if kind != "default" or rope.get("partial_rotary_factor", 1) != 1:
        fields.read["rope_scaling"] = rope
    if rope.get("rope_theta") is not None:
        fields.config = {**fields.config, called: rope["rope_theta"]}
    return fields.share(called, base, most=1e12), rope, kind


def _scaling(
    fields: Fields, rope: Mapping[str, Any], kind: str, positions: int, tokens: int, rotating: int
) -> RotaryScaling | None:
    """The stretching of the rotary angles for long sequences, or None if they are not stretched.

    rope: the fields of the rotation, by name. kind: one of `ROTATIONS`, such as "yarn". positions: the model's longest
    sequence, in tokens. tokens: tokens per sample. rotating: count of numbers of each head that are turned. Raises InputError
    for invalid fields.
    """

    def number(name: str, default: float | None = None, least: float = 0.0) -> float:
        """The number in a field of the rotation, at least `least`, or its default where absent. Raises InputError for invalid
        fields.
        """
        value: Any = default if rope.get(name) is None else rope[name]
        if type(value) not in (int, float) or not least <= value < math.inf:
            problem = "is missing" if value is None else f"is {shown(value)}"
            raise fields.fail(f"rope_scaling.{name}", problem, f"give a number from {least:g}, such as {EXAMPLES[name]:g}")
        return float(value)

    usual_original = fields.config.get("original_max_position_embeddings") or positions  # next to it, in Phi-3's files
    original = int(number("original_max_position_embeddings", usual_original, 1.0))
    if kind == "linear":
        return RotaryScaling("linear", number("factor", least=1.0))
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low > high:
            raise fields.fail("rope_scaling.high_freq_factor", f"is {high:g}", f"give at least low_freq_factor = {low:g}")
        return RotaryScaling("llama3", number("factor", least=1.0), original, low, high)
    if kind == "yarn":
        factor = number("factor", positions / original, 1.0)
        ends = number("beta_slow", 1.0) or 1.0, number("beta_fast", 32.0) or 32.0
        scales = number("mscale", 0.0), number("mscale_all_dim", 0.0)
        first, second = (0.1 * scale * math.log(factor) + 1.0 for scale in (scales if all(scales) else (1.0, 0.0)))
        amplitude = number("attention_factor", first / second)
        return RotaryScaling("yarn", factor, original, *ends, amplitude, bool(rope.get("truncate", True)))
    if kind == "longrope" and rope.get("short_factor") is not None:
        factor = positions / original if original != positions else number("factor", 1.0, 1.0)
        usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        name = "long_factor" if tokens > original else "short_factor"
        stretch = _factors(fields, rope, name, rotating // 2)
        return RotaryScaling("longrope", factor, original, amplitude=number("attention_factor", usual), factors=stretch)
    return None


def _factors(fields: Fields, rope: Mapping[str, Any], name: str, pairs: int) -> tuple[float, ...]:
    """Read longrope's factors, by which the rotation rates of pairs of numbers in a head are divided: one factor per pair.

    rope: the fields of the rotation, by name. name: the field with the list. pairs: the number of pairs. Raises InputError
    for an invalid list.
    """
    values = rope.get(name)
    if not isinstance(values, list) or len(values) != pairs:
        raise fields.fail(f"rope_scaling.{name}", f"is {shown(values)}", f"give a list of {pairs} numbers, one for each pair")
    for index, value in enumerate(values):
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise fields.fail(f"rope_scaling.{name}[{index}]", f"is {shown(value)}", "give a number above 0, such as 1.05")
    return tuple(float(value) for value in values)


EXAMPLES = {
    "original_max_position_embeddings": 8192,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_slow": 1.0,
    "beta_fast": 32.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "attention_factor": 1.0,
}


def _check_rope(fields: Fields, name: str, rope: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check one of the two fields of a configuration that may describe its rotation, `rope_scaling` and `rope_parameters`.

    name: the field's name. rope: its value. other: the value of the field that was read before. Raises InputError for
    misspelt names in it, and for values that differ from the other field's.
    """
    for key, value in rope.items():
        near = [] if key in ROTATION_FIELDS else get_close_matches(str(key), ROTATION_FIELDS, n=1, cutoff=0.75)
        if near:
            raise fields.fail(
                f"{name}.{key}", f"is {shown(value)}, but a rotation has no such field", f"did you mean {near[0]}?"
            )
        before = other.get(key, other.get({"rope_type": "type", "type": "rope_type"}.get(str(key), ""), value))
        if before != value:
            fix = f"give {shown(before)}, as rope_scaling has it, or leave one of them out"
            raise fields.fail(f"{name}.{key}", f"is {shown(value)}", fix)


ROTATION_FIELDS = names(
    """
    rope_type type rope_theta factor original_max_position_embeddings partial_rotary_factor attention_factor beta_fast
    beta_slow short_factor long_factor low_freq_factor high_freq_factor mscale mscale_all_dim truncate finetuned mrope_section
    mrope_interleaved llama_4_scaling_beta max_position_embeddings
    """
)
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
