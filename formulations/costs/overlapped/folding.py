"""The layout of units of experts, on the same devices as the other units of their pipeline stage, in another way ("folding").

A stage has dp x cp x tp devices. For units of experts the same devices are etp x ep x edp: ranks are numbered by etp first,
then ep, then edp (Megatron-Core's `RankGenerator` with `expert_tensor_parallel_size`, core 0.9; torchtitan has etp 1 and ep
within its data-, context- and tensor-parallel ranks). Each ep rank holds a part of the experts, its etp ranks a part of each
expert's inner width, and edp ranks hold the same: ZeRO shares the states of experts among edp ranks alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors

# How tokens come to their experts. `all-to-all`: one message with every copy of a token; `all-gather`: all tokens to all ranks;
# `deduplicated`: one copy of a token to each node, and from there one to each rank that has experts of it (DeepEP, HybridEP).
Dispatcher = Literal["all-to-all", "all-gather", "deduplicated"]
WORDS = re.compile(r"(?:edp(?P<edp>\d+))?(?:-?ep(?P<ep>\d+))?(?:-?etp(?P<etp>\d+))?")


@dataclass(frozen=True)
class ExpertRates:
    """The rates that kernels and links of units of experts reach, relative to what tables of efficiencies say of others. Fitted
    to 65 steps of mixtures of five sources (`validation.mixture_fit`): where any one is left out, 0.69 to 0.88, 0.69 to 0.79
    and 0.66 to 0.76.

    Attributes:
        grouped: of grouped products in the model's dtype, over one product with as many rows.
        grouped_in_bits: the same in 8 or 4 bits.
        exchange: the bandwidth of an exchange of tokens, over that of a ring between the same ranks: messages to many ranks are
            smaller, and arrive at one rank from several at a time.
    """

    grouped: float = 0.86
    grouped_in_bits: float = 0.75
    exchange: float = 0.69


FITTED = ExpertRates()


@dataclass(frozen=True)
class ExpertsLayout:
    """How the units of experts of a run are laid out, and what its runtime does with their tokens.

    Attributes:
        ep: the number of ranks among which experts are divided.
        etp: the number of ranks among which each expert's inner width is.
        dispatcher: how tokens come to their experts.
        dispatched_bytes: bytes of a number that is sent to experts; None for those of the model's dtype. Results come back in
            the model's dtype.
        imbalance: tokens of the fullest rank over the mean, at least 1; 1 where routing is forced to be balanced.
        capacity: the most tokens that an expert takes, over the mean; None without a limit.
        padded: whether each expert takes as many tokens as its capacity, the rest of them empty.
        grouped: whether the products of a rank's experts are one kernel, not a kernel for each expert.
        shared_alongside: whether shared experts run in parallel with the exchange of tokens.
        exchange_alongside: whether the exchange of a micro-batch runs in parallel with another micro-batch's passes.
        fused: whether the activation, and casts of what it reads and writes, are parts of the products' kernels.
        rates: what kernels and links of units of experts reach.
        issue_ns: the time that the host takes to issue the forward pass of a unit of experts; 0 where it is never waited for.
    """

    ep: int = 1
    etp: int = 1
    dispatcher: Dispatcher = "all-to-all"
    dispatched_bytes: float | None = None
    imbalance: float = 1.0
    capacity: float | None = None
    padded: bool = False
    grouped: bool = True
    shared_alongside: bool = False
    exchange_alongside: bool = False
    fused: bool = False
    rates: ExpertRates = FITTED
    issue_ns: float = 0.0

    @property
    def fill(self) -> float:
        """Rows of the fullest rank's experts over the mean of all ranks': the imbalance, as far as the capacity lets it; the
        capacity itself where experts are padded to it."""
        if self.capacity is None:
            return self.imbalance
        return self.capacity if self.padded else min(self.imbalance, self.capacity)


NO_EXPERTS = ExpertsLayout()


def expert_data_degree(group: int, ep: int, etp: int, where: str = "layout") -> int:
    """The number of ranks that hold the same part of the same experts (edp): the devices of a stage over ep x etp.

    group: the number of devices of a pipeline stage, dp x cp x tp. where: the name of the file or row, for errors. Raises
    InputError unless ep x etp divides the group.
    """
    if ep < 1 or etp < 1 or group % (ep * etp):
        legal = [degree for degree in divisors(group) if group % (degree * etp) == 0]
        fix = f"give one of {', '.join(map(str, legal))}" if legal else f"give an etp that divides {group}"
        problem = f"is {ep}, which with etp {etp} does not divide the {group} devices of a stage"
        raise InputError(where, "ep" if legal else "etp", problem if legal else f"is {etp}, of a stage of {group} devices", fix)
    return group // (ep * etp)


def check_folded(experts: int, inner: int, ep: int, etp: int, where: str = "layout") -> None:
    """Raise InputError unless a unit's experts can be divided among ep ranks, and each of them among etp ranks.

    experts: the number of experts. inner: the inner width of one. where: the name of the file or row, for errors.
    """
    if experts % ep:
        legal = ", ".join(map(str, divisors(experts)))
        raise InputError(where, "ep", f"is {ep}, which does not divide {experts} experts", f"give one of {legal}")
    if inner % etp:
        fix = f"give a degree that divides {inner}, such as 1"
        raise InputError(where, "etp", f"is {etp}, which does not divide the {inner} inner numbers of an expert", fix)


def folded_words(edp: int, ep: int, etp: int) -> str:
    """The strategy of a unit of experts as text, its slowest links first, degrees of 1 left out: "edp4-ep8", "ep8-etp2";
    "single" for one device."""
    degrees = {"edp": edp, "ep": ep, "etp": etp}
    return "-".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "single"


def parse_folded(text: str, where: str = "strategy") -> tuple[int, int, int]:
    """Read the strategy of a unit of experts, such as "edp4-ep8": its (edp, ep, etp), 1 where a degree is not written. Raises
    InputError for any other text. where: the name of the file or option, for errors.
    """
    match = WORDS.fullmatch(text) if text and not text.startswith("-") else None
    if text != "single" and (match is None or "0" in {degree for degree in match.groups() if degree}):
        raise InputError(where, "", f"is {text!r}, which is no strategy of experts", "write it as edp4-ep8 or edp2-ep8-etp2")
    edp, ep, etp = (int(degree or 1) for degree in match.groups()) if match else (1, 1, 1)
    return edp, ep, etp
