"""Tables 2 to 11 of AMP (Li et al., 2022) as printed: candidates with their cuts and seconds, and their summaries.

Layers count from 0 here; the paper counts from 1, so its "layer 3-26" of GPT-2 are 2 to 25, and TransGAN's 4-15 and 42-53
are 3 to 14 and 41 to 52. That is the order of DeepSpeed's GPT2ModelPipe (an embedding, a lambda, 24 blocks, a lambda, a
norm, the tied head, a cast): the uniform cut 14 leaves 12 blocks on each side, as `type:transformer` makes it.

Readings. Table 10 prints pp 1 for two stages and pp 2 for four: the cuts are taken, for a uniform assignment over one stage has
no cut. dp is 16 / (pp tmp), for 16 devices.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICES = 16


@dataclass(frozen=True)
class Candidate:
    """A strategy that the authors ran.

    Attributes:
        table: the number of its table.
        mbs: samples of a micro-batch.
        cuts: the first layers of the stages after the first.
        tmp: the tensor-parallel degree.
        seconds: the measured step.
        printed_pp: the printed pp, where it is not the number of stages.
    """

    table: int
    mbs: int
    cuts: tuple[int, ...]
    tmp: int
    seconds: float
    printed_pp: int | None = None

    @property
    def pp(self) -> int:
        return len(self.cuts) + 1

    @property
    def dp(self) -> int:
        return DEVICES // (self.pp * self.tmp)

    @property
    def planner(self) -> str:
        return "Megatron" if self.table % 2 == 0 else "AMP"

    def __str__(self) -> str:
        return f"Table {self.table}, mbs {self.mbs}, pp {self.pp}, dp {self.dp}, tmp {self.tmp}"


@dataclass(frozen=True)
class Setting:
    """A model on a cluster with one global batch size.

    Attributes:
        name: the setting's name.
        model: the model's name.
        cluster: the cluster's name.
        batch: samples of a step.
        layers: the number of layers.
        blocks: for each run of Transformer blocks its first layer and its number of blocks.
        tables: the numbers of the tables of Megatron's candidates and of AMP's.
    """

    name: str
    model: str
    cluster: str
    batch: int
    layers: int
    blocks: tuple[tuple[int, int], ...]
    tables: tuple[int, int]


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("homogeneous", "amp-gpt2", "amp-homogeneous-16", 32, 30, ((2, 24),), (6, 7)),
        Setting("heterogeneous cluster", "amp-gpt2", "amp-heterogeneous-16", 32, 30, ((2, 24),), (8, 9)),
        Setting("heterogeneous model", "amp-transgan", "amp-p3-16", 64, 56, ((3, 12), (41, 12)), (10, 11)),
    )
}

# A row: mbs, the paper's list without its 0 and L, tmp, pp, seconds.
_SIXTEEN = "4 6 8 10 12 14 16 17 18 19 20 21 22 23 25", "3 5 7 9 11 13 15 16 17 19 20 21 22 23 25"
_TRANSGAN_SIXTEEN = "5 8 11 14 42 43 44 45 46 47 48 49 50 51 52"
_ROWS: dict[int, tuple[tuple[int, str, int, int, float], ...]] = {
    6: (
        (1, "", 1, 1, 1.32),
        (2, "14", 1, 2, 1.37),
        (2, "", 2, 1, 1.58),
        (4, "14", 1, 2, 1.63),
        (4, "", 2, 1, 1.53),
    ),
    7: (
        (1, "15", 1, 2, 1.28),
        (1, "9 15 21", 1, 4, 1.20),
        (1, "6 9 12 15 18 21 24", 1, 8, 1.23),
        (2, "15", 1, 2, 1.38),
        (1, _SIXTEEN[0], 1, 16, 1.55),
    ),
    8: (
        (2, "14", 1, 2, 2.27),
        (4, "14", 1, 2, 2.32),
        (8, "8 14 20", 1, 4, 1.97),
        (8, "14", 2, 2, 2.43),
        (16, "8 14 20", 2, 4, 2.34),
    ),
    9: (
        (1, "7 14 20", 1, 4, 1.47),
        (1, "5 9 12 15 18 21 24", 1, 8, 1.28),
        (1, _SIXTEEN[1], 1, 16, 1.52),
        (2, "8 14 20", 1, 4, 1.52),
        (2, "5 9 12 14 17 20 23", 1, 8, 1.54),
    ),
    10: (
        (1, "41", 1, 1, 1.89),
        (2, "9 41 47", 1, 2, 1.99),
    ),
    11: (
        (1, "12 44 48", 1, 4, 1.07),
        (2, "12 44 48", 1, 4, 1.08),
        (2, _TRANSGAN_SIXTEEN, 1, 16, 1.13),
        (1, _TRANSGAN_SIXTEEN, 1, 16, 1.30),
        (2, "7 12 42 44 47 49 51", 1, 8, 1.39),
    ),
}


def _candidate(table: int, mbs: int, cuts: str, tmp: int, pp: int, seconds: float) -> Candidate:
    listed = tuple(map(int, cuts.split()))
    return Candidate(table, mbs, listed, tmp, seconds, None if pp == len(listed) + 1 else pp)


CANDIDATES = {table: tuple(_candidate(table, *row) for row in rows) for table, rows in _ROWS.items()}


def candidates(setting: Setting) -> tuple[Candidate, ...]:
    """All candidates that the paper lists for a setting: Megatron's, then AMP's."""
    return sum((CANDIDATES[table] for table in setting.tables), ())


# Table 2: seconds of AMP's optimisation by the side length of the cluster, GPT-2 with 24 layers, global batch size 32.
OPTIMIZATION_S = {2: 58.0, 4: 325.6, 8: 890.3, 16: 1627.4}

# Tables 3, 4 and 5: (best, mean) seconds of a method's candidates.
BEST_AND_MEAN = {
    "homogeneous": {"megatron": (1.32, 2.41), "amp": (1.20, 1.43), "simulated-annealing": (1.57, 1.82)},
    "heterogeneous cluster": {
        "megatron": (1.97, 2.62),
        "random": (1.71, 3.04),
        "amp": (1.28, 1.73),
        "simulated-annealing": (1.46, 2.29),
    },
    "heterogeneous model": {
        "megatron": (1.89, 1.94),
        "uniform-parameters": (2.19, 2.19),
        "uniform-layers": (1.25, 1.25),
        "amp": (1.07, 1.66),
    },
}

# The text's speedups of AMP's best over Megatron's best.
SPEEDUPS = {"heterogeneous cluster": 1.54, "heterogeneous model": 1.77}

# Published by the authors with their code (github.com/DachengLi1/AMP), not in the paper:

# AMP's own predictions of the candidates of each table, in seconds; None where they ran other cuts.
PUBLISHED_PREDICTIONS: dict[int, tuple[float | None, ...]] = {
    6: (1.2443, None, 1.9607, 1.8671, 1.9607),
    7: (1.2665, 1.2841, 1.3804, 1.4714, 1.4857),
    8: (2.1342, 2.4505, 2.7881, 3.7238, 6.6146),
    9: (1.0859, 1.1402, 1.1465, None, 1.4332),
}

# Its predictions of pp 1, dp 16, mbs 1: two micro-batches, and gradients of 4 bytes over the link that it took.
PUBLISHED_DP16 = {"homogeneous": (1.2443, 50e9), "heterogeneous cluster": (2.7789, 10e9)}
V100_SHARE = 0.75  # of the mean layer times that it took on the mixed cluster

# Its measured times of TransGAN's layers on a V100, tmp 1, one sample, both passes (the forward time three times), in us.
PUBLISHED_TRANSGAN_US = (
    *(721, 226, 228),
    *(6375, 6101, 6194, 6110, 6238, 6115, 6221, 6085, 6130, 6090, 6216, 6077),
    *(214, 408, 332, 56, 310, 232, 489, 233, 101, 261, 85, 163, 94, 275, 488, 232, 95, 250, 84, 69, 251, 431, 215, 95, 245, 82),
    *(12025, 12002, 11998, 11989, 11989, 11979, 11983, 11981, 11992, 12011, 12003, 12021),
    *(127, 325, 818),
)
