"""Tables I to IV of AutoPipe (Liu et al., 2022) as printed, and numbers of its figures and plans that its text states.

The scan has lost the figures: of Figures 9 to 14 there is only what the text says. Micro-batch sizes of Figure 9 are lost but
for 32, and 24 as the largest of GPT-2 762M; Figure 10's are in the text, its numbers of stages but for 2, 8, 9 and 12 are not.

Algorithms are D (DAPPLE's planner), P (Piper) and A (AutoPipe's planner), run on the same number of GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ALGORITHMS = ("D", "P", "A")
PLANNERS = {"D": "DAPPLE", "P": "Piper", "A": "AutoPipe"}
GPU_BYTES = 24 * 2**30

# Table I: layers, hidden size, millions of parameters.
MODELS = {
    "gpt2-345m": (24, 1024, 345),
    "gpt2-762m": (36, 1280, 762),
    "gpt2-1.3b": (24, 2048, 1314),
    "bert-large": (24, 1024, 340),
}

# Table II: layers of the four stages of GPT-2 345M; a half is an attention block or a feed-forward block.
PARTITIONS = {
    1: (5, 7, 6, 6),
    2: (6, 6.5, 6.5, 5),
    3: (6, 7, 6, 5),
    4: (6.5, 6.5, 6.5, 4.5),
    5: (6.5, 6.5, 6, 5),
    6: (7, 5.5, 6, 5.5),
    7: (7, 6.5, 5.5, 5),
}

Failure = Literal["OOM", "error"]


@dataclass(frozen=True, eq=False)
class Setting:
    """A block of Table III or IV.

    Attributes:
        table: 3 or 4.
        model: the model's name.
        mbs: samples of a micro-batch.
        gpus: the number of GPUs.
        batches: samples of a step (Gbs) in each column.
        printed: by algorithm, the milliseconds of a step in each column, or why there are none.
    """

    table: int
    model: str
    mbs: int
    gpus: int
    batches: tuple[int, int, int]
    printed: dict[str, tuple[float, float, float] | Failure]

    def micro_batches(self, column: int) -> int:
        """The number of micro-batches of a step, over all pipelines, in a column."""
        return self.batches[column] // self.mbs

    def milliseconds(self, algorithm: str, column: int) -> float | None:
        row = self.printed[algorithm]
        return None if isinstance(row, str) else row[column]

    def slope_ms(self, algorithm: str) -> float | None:
        """The milliseconds that a further micro-batch adds to a step, from the first to the last column; None where the
        algorithm has no times."""
        row = self.printed[algorithm]
        return None if isinstance(row, str) else (row[2] - row[0]) * self.mbs / (self.batches[2] - self.batches[0])

    def __str__(self) -> str:
        return f"Table {'I' * self.table if self.table < 4 else 'IV'}, {self.model}, Mbs {self.mbs}, {self.gpus} GPUs"


SMALL, LARGE = (128, 256, 512), (512, 1024, 2048)
SETTINGS = (
    Setting(
        3,
        "gpt2-345m",
        4,
        4,
        SMALL,
        {"D": (11091, 19925, 39815), "P": (6755.6, 12842, 25421), "A": (6510.5, 12852, 25737)},
    ),
    Setting(3, "gpt2-345m", 4, 16, SMALL, {"D": "error", "P": (2081.1, 4066.0, 7216.0), "A": (2077.6, 4063.7, 7236.5)}),
    Setting(
        4,
        "gpt2-345m",
        32,
        4,
        LARGE,
        {"D": (27477.3, 53539.9, 105635), "P": (30285.9, 56399.5, 108694), "A": (27020.9, 50969.7, 99110.9)},
    ),
    Setting(
        4,
        "gpt2-345m",
        32,
        8,
        LARGE,
        {"D": (15828.6, 30853.7, 60898.3), "P": (18143.6, 31901.0, 60397.7), "A": (15445.3, 27147.5, 51217.4)},
    ),
    Setting(4, "gpt2-1.3b", 16, 4, LARGE, {"D": "OOM", "P": (67087.2, 128831, 253052), "A": (62885.0, 119788, 234781)}),
    Setting(4, "gpt2-1.3b", 16, 8, LARGE, {"D": "OOM", "P": (36783.1, 70017.3, 137135), "A": (34512.7, 62869.1, 120732)}),
)

# What the text says of the plans: numbers of stages, in the order of SETTINGS (complete data parallelism is one stage).
STAGES = {"D": (2, 2, 2, 2, 2, 2), "P": (1, 1, 4, 6, 4, 5), "A": (1, 1, 2, 2, 4, 4)}
# Layers on stage 2 of GPT-2 345M on 4 GPUs, Mbs 32; and the replicas of DAPPLE's second stage on 16 GPUs.
DAPPLE_SECOND_STAGE, AUTOPIPE_SECOND_STAGE = 17, 11
DAPPLE_REPLICAS_OF_16 = 15

# Sections IV-B, IV-D and IV-E: ranges of speed-ups over Megatron-LM, over D and P, and of the improvement of the balance.
SPEEDUPS_FIGURE_9 = {"planner": (1.05, 1.10), "slicer": (1.0, 1.03), "both": (1.07, 1.12)}  # the slicer "up to" 1.03
# The slicer lengthens the step of two stages by what is not printed; the planner shortens every one.
SPEEDUPS_FIGURE_10: dict[str, tuple[float | None, float]] = {"slicer": (None, 1.04), "both": (1.02, 1.30)}
BERT_12_STAGES = 1.25  # planner alone
OVER_DAPPLE, OVER_PIPER, OVER_PIPER_LARGE = 1.19, 1.18, (1.07, 1.14)  # the last: 1.3B on 8 GPUs
BALANCE = {"D": (2.73, 6.89), "P": (5.35, 12.7)}
STARTUP = 0.5  # Figure 14: of Megatron's, by the slicer and by the interleaved schedule

# Figure 9: 4 stages, 8 micro-batches. 762M is out of memory with 32; the other sizes are assumed.
SIZES_FIGURE_9 = {
    "gpt2-345m": (4, 8, 16, 32),
    "gpt2-762m": (4, 8, 16, 24),
    "gpt2-1.3b": (4, 8, 16),
    "bert-large": (4, 8, 16, 32),
}
OUT_OF_MEMORY_FIGURE_9 = ("gpt2-762m", 32)
# Figure 10: micro-batch sizes; numbers of stages, of which 4 is assumed.
SIZES_FIGURE_10 = {"gpt2-345m": 4, "gpt2-762m": 4, "bert-large": 16}
STAGES_FIGURE_10 = {"gpt2-345m": (2, 4, 8, 12), "gpt2-762m": (2, 4, 9, 12), "bert-large": (2, 4, 8, 12)}
