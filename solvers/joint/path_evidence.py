"""Weighted paths as evidence: the point of the best bound of `free_cuts`, in whole numbers, for `path_check` to follow."""

from __future__ import annotations

from contextlib import suppress

from trainplan.formulations.joint.certificates.file import ConfigurationEvidence, WeightedPath
from trainplan.formulations.joint.certificates.path_bound import least_by_paths_ns
from trainplan.formulations.joint.problem import Instance
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.fixed_cuts.critical_path import Path
from trainplan.solvers.joint.free_cuts.lp_bound import FreeCuts, Point

WHOLE = 2**20  # of which weights are parts
LEAST_WHOLE = 2**8


def by_paths(instance: Instance, place: int, target: int, search: Search) -> ConfigurationEvidence | None:
    """Evidence that a configuration with one stage on each of several equal sites has no step up to the target, or up to the
    largest that weighted paths show to be impossible; None where they show nothing, or where the configuration is too large."""
    configuration = instance.configurations[place]
    cuts = FreeCuts(instance, place, 0.0)
    with suppress(TimeoutError):
        cuts.run(lambda: cuts.bound <= target, search.check_time)
    whole = WHOLE
    while cuts.point is not None and whole >= LEAST_WHOLE:
        claim = _rounded(cuts, cuts.point, whole)
        with suppress(ValueError):  # numbers that are too large for 64 bits
            shown = least_by_paths_ns(instance, configuration, claim) - 1
            return ConfigurationEvidence(min(shown, target), paths=claim.paths, memory=claim.memory, host=claim.host)
        whole //= 16
    return None


def _rounded(cuts: FreeCuts, point: Point, whole: int) -> ConfigurationEvidence:
    """A point in whole numbers, of which the weights add up to about `whole`."""
    paths = [weighted(cuts.paths[key], round(weight * whole)) for key, weight in point.weights.items()]
    paths = [path for path in paths if path.weight]
    total = sum(path.weight for path in paths)
    memory, host = (tuple(round(float(price) * total) for price in prices) for prices in (point.memory, point.host))
    return ConfigurationEvidence(-1, paths=tuple(paths), memory=memory, host=host if any(host) else ())


def weighted(path: Path, weight: int) -> WeightedPath:
    """A path as evidence."""
    return WeightedPath(weight, path.end, path.site, int("1" + "".join(map(str, path.turns[::-1])), 2))
