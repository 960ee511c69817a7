"""GLM-4-0414: GLM-4 with norms before and after attention and feed-forward network."""

from __future__ import annotations

from trainplan.profiling.models.families.decoder import SIZES
from trainplan.profiling.models.families.fields import Family, Fields, Unit
from trainplan.profiling.models.families.glm import FIELDS, glm_chain


def glm4(fields: Fields) -> tuple[list[Unit], bool]:
    """Build the chain of sub-layers of a GLM-4-0414 model: GLM-4 with norms before and after attention and feed-forward
    network.

    fields: the configuration (config.json), written to: `fields.read` gets every field that is read, with its value. Returns
    the units (sub-layers with names) in order, and whether head and embedding share one matrix. Raises InputError for fields
    that are missing or invalid.
    """
    return glm_chain(fields, sandwich=True)


FAMILY = Family(glm4, SIZES, FIELDS)
