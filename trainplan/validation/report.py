"""Errors of predictions over groups of measured runs, such as all runs of one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from trainplan.validation.predict import Prediction


def _products(prediction: Prediction) -> str:
    """The low-precision recipe, or else the dtype, of the layers' matrix multiplications of a predicted run, as one name
    regardless of how the run spells it. prediction: the prediction of one measured run.
    """
    return (prediction.run.precision or "").lower() if prediction.laid is None else prediction.laid.products


GROUPS: dict[str, tuple[str, Callable[[Prediction], str]]] = {
    "all": ("", lambda prediction: "all"),
    "gpu": ("device", lambda prediction: prediction.run.gpu if prediction.laid is None else prediction.laid.name),
    "precision": ("precision", _products),
    "source": ("source", lambda prediction: prediction.run.source),
}


@dataclass(frozen=True)
class Errors:
    """Statistics of the relative errors of predictions over a group of runs.

    Attributes:
        count: the number of runs.
        mean: the mean of the errors.
        absolute: the mean of their absolute values.
        median: the median of their absolute values.
        ninth: the 90th percentile of their absolute values.
        inside: the share of measured steps within their predicted intervals; None for errors of memory.
    """

    count: int
    mean: float
    absolute: float
    median: float
    ninth: float
    inside: float | None = None


def summarised(errors: Sequence[float], inside: float | None = None) -> Errors:
    """Compute the statistics (mean, median, percentile) of relative errors of at least one run. inside: the share of measured
    steps within their predicted intervals; None for errors of memory.
    """
    sizes = sorted(map(abs, errors))
    ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return Errors(len(errors), fmean(errors), fmean(sizes), median(sizes), ninth, inside)


def groups() -> list[tuple[str, str]]:
    """The criteria by which predicted runs can be grouped, as pairs of the criterion's name, such as "gpu", and the noun for
    it in texts for users, such as "device".
    """
    return [(name, noun) for name, (noun, _) in GROUPS.items()]


def by_group(predictions: Sequence[Prediction], group: str, error: str = "error") -> Mapping[str, Errors]:
    """Group predictions of measured runs by a criterion, and compute the statistics of their errors in each group.

    Args:
        predictions: the predictions; those without this error (nothing measured) are ignored.
        group: the criterion's name, one of those in `groups()`, such as "gpu".
        error: which error: "error", of the step, or "memory_error", of the peak memory.

    Returns:
        The statistics by the criterion's values, sorted by value; empty if no run has a value.
    """
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
    """The share, from 0 to 1, of measured steps that lie within the interval that was predicted for them."""
    within = [
        prediction.step_low_s <= prediction.measured_s <= prediction.step_high_s
        for prediction in predictions
        if prediction.step_low_s is not None and prediction.step_high_s is not None and prediction.measured_s is not None
    ]
    return sum(within) / len(within)
