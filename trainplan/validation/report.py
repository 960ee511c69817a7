"""Errors of predictions, by kinds of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from trainplan.validation.predict import Prediction


def _products(each: Prediction) -> str:
    """What the products of layers are computed in, however the row writes that."""
    return (each.run.precision or "").lower() if each.laid is None else each.laid.products


GROUPS: dict[str, tuple[str, Callable[[Prediction], str]]] = {
    "all": ("runs", lambda each: "all"),
    "gpu": ("device", lambda each: each.run.gpu if each.laid is None else each.laid.name),
    "precision": ("precision", _products),
    "source": ("source", lambda each: each.run.source),
}


@dataclass(frozen=True)
class Errors:
    """Of some runs: how many, the mean of the relative errors, and of their absolute values mean, median and 90th percentile;
    inside: the share of measured steps within their intervals, where errors are those of steps."""

    count: int
    mean: float
    absolute: float
    median: float
    ninth: float
    inside: float | None = None


def summarised(errors: Sequence[float], inside: float | None = None) -> Errors:
    """The errors of some runs, at least one."""
    sizes = sorted(map(abs, errors))
    ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return Errors(len(errors), fmean(errors), fmean(sizes), median(sizes), ninth, inside)


def groups() -> list[tuple[str, str]]:
    """What errors are grouped by, and what to call it."""
    return [(name, noun) for name, (noun, _) in GROUPS.items()]


def by_group(predictions: Sequence[Prediction], group: str, error: str = "error") -> Mapping[str, Errors]:
    """Errors of the predictions with this one of the groups, by its values, where any of them has
    one. error: `error` of steps, or `memory_error`."""
    members_by_group: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        if getattr(prediction, error) is not None:
            members_by_group.setdefault(GROUPS[group][1](prediction), []).append(prediction)
    if set(members_by_group) == {""}:
        return {}
    return {
        name or "not said": summarised(
            [getattr(member, error) for member in members], _inside(members) if error == "error" else None
        )
        for name, members in sorted(members_by_group.items())
    }


def _inside(predictions: Sequence[Prediction]) -> float:
    within = [
        prediction.step_low_s <= prediction.measured_s <= prediction.step_high_s
        for prediction in predictions
        if prediction.step_low_s is not None and prediction.step_high_s is not None and prediction.measured_s is not None
    ]
    return sum(within) / len(within)
