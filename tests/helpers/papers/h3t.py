"""Tables 1, 2, 3, 5 and 6 of H3T (Wang et al., 2023) as printed, and the statements of its text on Figure 6.

The scan has lost the figures: of Figure 6, the simulation study, there is only what Section 4.2 says. Gigabytes are decimal
ones: Section C.3 gives the limit of 2080 Ti as 8000 MB where Table 6 has 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.formulations.plan.switches import SwitchName

GB = 10**9
SEQUENCE = 512

# Table 2: millions of parameters, layers, hidden size, feed-forward size, heads. Sequence length 512 (Section C.3).
MODELS = {
    "bert-1.8b": (1840, 48, 1024, 16384, 32),
    "bert-6b": (6680, 48, 1024, 65536, 128),
    "bert-13b": (13800, 48, 2048, 65536, 128),
    "bert-100b": (102000, 56, 12288, 49152, 96),
}

# Section C.2, and the memory that Section C.3 gives the solvers for Table 1.
ENVIRONMENTS = ("h3t-2080ti-8", "h3t-a100-8", "h3t-a100-64")
LIMITS = {"h3t-2080ti-8": 8 * GB, "h3t-a100-8": 28 * GB, "h3t-a100-64": 28 * GB}
DEVICE_BYTES = {"h3t-2080ti-8": 10 * 2**30, "h3t-a100-8": 40 * 2**30, "h3t-a100-64": 40 * 2**30}


@dataclass(frozen=True)
class Setting:
    """A column of Tables 1 and 3: seconds of a step by method, and the least memory in gigabytes; None means out of memory.

    dp_s, greedy_s and all_on_s are of BMTrain's methods (all_on: with all switches on), zero_3_s and zero_2_s of the toolkit
    (Megatron-DeepSpeed); least_gb is BMTrain's least memory, zero_3_gb and zero_2_gb are the toolkit's.
    """

    environment: str
    model: str
    batch: int
    dp_s: float
    greedy_s: float
    all_on_s: float
    zero_3_s: float | None
    zero_2_s: float | None
    least_gb: float
    zero_3_gb: float | None
    zero_2_gb: float | None

    @property
    def limit_bytes(self) -> int:
        return LIMITS[self.environment]

    @property
    def device_bytes(self) -> int:
        return DEVICE_BYTES[self.environment]

    def __str__(self) -> str:
        return f"{self.environment}, {self.model}, batch {self.batch}"


SETTINGS = (
    Setting("h3t-2080ti-8", "bert-1.8b", 128, 6.0, 5.8, 7.1, 11.3, 9.3, 1.7, 5.8, 6.8),
    Setting("h3t-2080ti-8", "bert-1.8b", 512, 17.6, 17.5, 17.7, None, None, 6.0, None, None),
    Setting("h3t-2080ti-8", "bert-6b", 8, 19.4, 19.6, 22.1, None, None, 1.0, None, None),
    Setting("h3t-2080ti-8", "bert-6b", 32, 19.8, 20.5, 23.0, None, None, 2.0, None, None),
    Setting("h3t-a100-8", "bert-6b", 128, 5.5, 5.5, 5.7, 15.7, 6.8, 6.0, 9.4, 20.2),
    Setting("h3t-a100-8", "bert-6b", 512, 19.5, 19.7, 19.8, None, None, 21.5, None, None),
    Setting("h3t-a100-8", "bert-13b", 128, 10.0, 9.7, 9.9, 43.2, 17.7, 7.0, 10.7, 34.4),
    Setting("h3t-a100-8", "bert-13b", 512, 28.4, 28.7, 28.6, None, None, 23.2, None, None),
    Setting("h3t-a100-64", "bert-13b", 1024, 7.4, 7.6, 7.8, None, 10.6, 6.7, None, 34.4),
    Setting("h3t-a100-64", "bert-13b", 4096, 26.6, 26.8, 26.9, None, None, 22.9, None, None),
    Setting("h3t-a100-64", "bert-100b", 1024, 35.6, 36.2, 36.3, None, None, 14.1, None, None),
    Setting("h3t-a100-64", "bert-100b", 2048, 61.6, 62.0, 61.8, None, None, 20.2, None, None),
)

# Sections 1, 4.3 and D.1: how many times faster the DP's plan is than the toolkit's, and which share of its memory is saved.
SPEEDUPS = {"zero-2": (1.2, 1.8), "zero-3": (1.9, 4.3)}
SAVED = {"zero-2": (0.703, 0.805), "zero-3": (0.346, 0.707)}


@dataclass(frozen=True)
class Search:
    """A row of Table 5: minutes of the paper's solvers (dp, greedy, random) for a model on 64 A100, m = 128."""

    model: str
    batch: int
    limit_gb: int
    dp: float
    greedy: float
    random: float

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.limit_gb} GB"


# Sections 1 and D.1: GPT-3-175B on 64 A100, batch 512, of 512 tokens: least gigabytes, and seconds of a step.
GPT3_GB, GPT3_S = 11.1, 40.8

SEARCHES = (
    Search("bert-13b", 1024, 25, 12.0, 0.6, 0.1),
    Search("bert-100b", 1024, 25, 4.7, 0.9, 0.2),
    Search("bert-13b", 4096, 25, 2.8, 0.6, 0.1),
    Search("bert-13b", 1024, 100, 13.9, 0.6, 0.1),
)

# Table 6: share of the layers that have a switch on, of BERT-1.8B, batch 128, on 8 x 2080 Ti with 8 GB.
CASE_SWITCHES: tuple[SwitchName, ...] = ("partition", "lazy_prefetch", "ckpt", "offload_hidden")
CASES = {
    "default": (0.90, 0.08, 0.92, 0.21),
    "slow PCI-E": (0.0, 0.0, 0.98, 0.0),
    "slow FPU": (0.88, 0.90, 0.88, 0.81),
    "25 GB": (0.50, 0.50, 0.65, 0.56),
    "greedy": (0.0, 0.0, 1.0, 0.0),
}
