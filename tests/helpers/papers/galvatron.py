"""Tables of Galvatron-BMW (Wang et al., 2023) as printed."""

from __future__ import annotations

TABLE_II_MODELS = (
    "bert-huge-32",
    "bert-huge-48",
    "vit-huge-32",
    "vit-huge-48",
    "t5-large-32",
    "t5-large-48",
    "swin-huge-32",
    "swin-huge-48",
)

# Parameters in millions, activations in MiB a sample.
TABLE_I = {
    "bert-huge-32": (672, 3149.39),
    "bert-huge-48": (987, 4657.51),
    "bert-xhuge": (10_200, 24210.05),
    "vit-huge-32": (632, 646.5),
    "vit-huge-48": (947, 968.59),
    "vit-xhuge": (10_100, 5313.9),
    "t5-large-32": (502, 4119.66),
    "t5-large-48": (737, 6107.75),
    "t5-512-4-32": (502, 1777.06),
    "t5-512-4-48": (737, 2473.10),
    "swin-huge-32": (701, 726.59),
    "swin-huge-48": (1016, 1016.8),
}

# Table II, the pure strategies: batch size of the largest throughput by memory in GiB, in the order of the models; 0: out of
# memory.
TABLE_II_PURE: dict[str, dict[int, tuple[int, ...]]] = {
    "dp": {
        8: (0, 0, 0, 0, 0, 0, 0, 0),
        12: (0, 0, 16, 0, 0, 0, 0, 0),
        16: (8, 0, 64, 0, 8, 0, 40, 0),
        20: (16, 0, 112, 32, 16, 8, 80, 24),
    },
    "tp": {
        8: (0, 0, 24, 16, 0, 0, 24, 8),
        12: (8, 0, 48, 32, 8, 0, 40, 24),
        16: (16, 8, 72, 40, 8, 0, 56, 40),
        20: (16, 8, 88, 56, 16, 8, 72, 48),
    },
    "pp": {
        8: (0, 0, 56, 32, 0, 0, 40, 24),
        12: (8, 8, 104, 64, 8, 8, 72, 48),
        16: (16, 8, 144, 96, 8, 8, 104, 64),
        20: (24, 16, 192, 128, 16, 16, 128, 88),
    },
    "sdp": {
        8: (8, 0, 64, 40, 8, 0, 48, 32),
        12: (16, 8, 112, 72, 16, 8, 88, 64),
        16: (24, 16, 160, 104, 24, 16, 136, 88),
        20: (40, 24, 216, 136, 32, 16, 176, 120),
    },
}
