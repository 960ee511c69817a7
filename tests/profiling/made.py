"""Profiles for all that strategies over a group of devices can meet with so many samples at once."""

from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.complete import for_shapes
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import shapes_needed
from trainplan.profiling.profiles import Profile


def estimate(model: Model, cluster: Cluster, group: int, rows: int) -> Profile:
    """Estimated, for `rows` samples over `group` devices."""
    return estimate_shapes(model, cluster, shapes_needed(model.tp_degrees(group), [group], [rows]), group)


def for_group(profile: Profile, group: int, rows: int) -> Profile:
    """Completed, for `rows` samples over `group` devices."""
    degrees = (profile.described_model or profile).tp_degrees(group)
    return for_shapes(profile, group, shapes_needed(degrees, [group], [rows]))
