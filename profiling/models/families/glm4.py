"""GLM-4-0414: GLM-4 with norms before and behind the matrices."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES
from trainplan.profiling.models.families.fields import Family, Fields, Unit
from trainplan.profiling.models.families.glm import FIELDS, glm_chain


def glm4(fields: Fields) -> tuple[list[Unit], bool]:
    """The chain of a GLM-4-0414 configuration."""
    return glm_chain(fields, sandwich=True)


FAMILY = Family(glm4, SIZES, FIELDS)
