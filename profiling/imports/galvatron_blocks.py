"""Names in Hetu-Galvatron's memory file: its summaries, and the raw blocks from which Galvatron computes them."""

from __future__ import annotations

import re

LAYER, OFF, FIRST, LAST = SUMMARIES = (
    "layertype_0",
    "other_memory_pp_off",
    "other_memory_pp_on_first",
    "other_memory_pp_on_last",
)
BLOCK = re.compile(r"(\d+)_(\d+)_(\d+)(_c)?(_vtp)?(_sp)?")
RAW = re.compile(r"layernum\[(\d+)\]_bsz(\d+)_seq(\d+)_rank(\d+)_(ms|act|act_peak)")
DERIVED = "trainplan.papers.galvatron_blocks:derived"  # summaries from raw blocks, for a file without them
STATE_COPIES = 4  # model states in sizes of the fp32 parameters: these, gradients, and two of the optimizer
MOST_MIB = 1e7
