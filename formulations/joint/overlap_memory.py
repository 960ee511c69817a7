"""Memory under `streams` in addition to a unit's own bytes: prefetched, freed late, exchanged, or copied in few bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import ceil

from trainplan.formulations.costs.overlapped.analytic_memory import copied_bytes
from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.joint.cost_tables import Setting
from trainplan.formulations.joint.host_offload import input_bytes
from trainplan.formulations.joint.overlap_lower_bounds import LaneTimes, layout_of
from trainplan.formulations.plan.strategy import Module, Strategy
from trainplan.profiling.clusters.recipes import Recipe
from trainplan.profiling.models.sublayers import LAYERED, Attention, HeadPieces, KeyShare

FREED_LATE = 2  # units


class OverlapMemory:
    """The bytes that buffers of overlapping lanes hold while units compute."""

    def __init__(
        self,
        lanes: LaneTimes,
        pieces: Mapping[str, Attention],
        element_bytes: int,
        gradient_bytes: int,
        recipe: Recipe | None,
        hidden: bool,
    ) -> None:
        """lanes: their profile and parameters are used. pieces: by name, the attentions that work on pieces of samples.
        element_bytes, gradient_bytes: of one parameter, and of its gradient. recipe: of matrix multiplications in few bits.
        hidden: whether units may have their inputs on the host."""
        self.lanes, self.profile, self.pieces, self.recipe, self.hidden = lanes, lanes.profile, pieces, recipe, hidden
        self.element_bytes, self.gradient_bytes = element_bytes, gradient_bytes
        self.consecutive_gradient_bytes = cache(self._consecutive_gradient_bytes)

    def delayed_free_bytes(self, sublayer: str, strategy: Strategy, setting: Setting) -> int:
        """Bytes next to a unit's own that overlapping lanes hold early or late: the whole gradients of the units before it that
        are still being reduced (`execution.analysis.memory.deferred_frees`); once the buffers that ranks with pieces of samples
        exchange; and where some units have their inputs on the host, those being copied out, the next one, and the next
        messages in both directions."""
        late, rows = self.consecutive_gradient_bytes(layout_of(strategy)), setting.samples // strategy.data_degree
        late *= strategy.shares_gradients
        shares = [_share(part, strategy.degree("tp")) for part in self.pieces.values()]
        ahead = max((share.whole_bytes(rows) for share in shares), default=0)
        if self.hidden:
            inputs = max(input_bytes(self.profile, count, strategy, setting.samples) for count in self.lanes.counts)
            piped = setting.group < self.profile.devices
            late += FREED_LATE * inputs
            ahead += inputs + 2 * setting.samples * moved_bytes(self.profile, sublayer)[1] * piped
        return late + ahead

    def exchanged_bytes(self, sublayer: str, strategy: Strategy, rows: int) -> tuple[int, int]:
        """For attention on pieces of samples, two numbers of bytes: those kept from forward to backward pass in addition to
        what whole samples of the rank's tokens keep, and those held while it computes. rows: samples of one rank. The latter
        are all keys and values with their gradients and, in order of ranks, once more; or those of `_heads_bytes`."""
        part = self.pieces.get(sublayer)
        if part is None:
            return 0, 0
        share = _share(part, strategy.degree("tp"), strategy.sequence_parallel, strategy.modules)
        if isinstance(share, HeadPieces):
            return _heads_bytes(share, rows, strategy.ckpt)
        whole, computed = 3 * share.whole_bytes(rows), share.own_bytes(rows) + share.graph_bytes(rows)
        if strategy.ckpt:
            return 0, whole + computed
        joined = rows * part.tokens * part.heads // share.tp * part.width * part.element_bytes * part.in_halves
        return joined + (0 if share.again else share.graph_bytes(rows)), whole + computed * share.again

    def largest_bytes(self, strategy: Strategy) -> int:
        """The bytes of the parameters of the largest unit on one tensor-parallel rank."""
        return max(self.lanes.parameters(unit, strategy) for unit in self.lanes.counts) * self.element_bytes

    def copied_bytes(self, sublayer: str, layout: Strategy) -> tuple[int, int]:
        """The bytes of copies of weights in few bits: those of the unit's own weights, held during the whole step, and those of
        gathered weights."""
        kinds = {name: self.profile.shapes[name].kind for name in self.lanes.counts}
        if layout.zero_stage == 3:
            gathered = [
                self.lanes.parameters(unit.sublayer, layout) for unit in self.profile.units if kinds[unit.sublayer] in LAYERED
            ]
            return 0, ceil(copied_bytes(gathered, self.recipe, self.element_bytes, 3))
        weights = [self.lanes.parameters(sublayer, layout)] if kinds[sublayer] in LAYERED else []
        return ceil(copied_bytes(weights, self.recipe, self.element_bytes, layout.zero_stage)), 0

    def _consecutive_gradient_bytes(self, layout: Strategy) -> int:
        """The largest sum, over FREED_LATE consecutive units, of the bytes of whole gradients on one tensor-parallel rank."""
        units = [self.lanes.parameters(unit.sublayer, layout) for unit in self.profile.units]
        sums = (sum(units[index : index + FREED_LATE]) for index in range(len(units)))
        return max(sums) * self.gradient_bytes


def _share(part: Attention, tp: int, shared: bool = False, modules: tuple[Module, ...] = ()) -> KeyShare:
    """The buffers that the ranks of an attention on pieces of samples exchange. tp: the tensor-parallel degree. shared: whether
    ranks share the tokens between matrices."""
    return (HeadPieces if part.by_heads else KeyShare)(part, tp, shared, modules)


def _heads_bytes(share: HeadPieces, rows: int, ckpt: bool) -> tuple[int, int]:
    """As `OverlapMemory.exchanged_bytes`, where ranks exchange heads. Kept are the results of the rank's tokens, and copies of
    keys and values; held are own queries, keys and values, the gradients of the core's results and, twice, those of its inputs.
    rows: samples of one rank. ckpt: whether the unit is recomputed."""
    own, whole, mixed, results = (
        of(rows) for of in (share.own_bytes, share.whole_bytes, share.mixed_bytes, share.results_bytes)
    )
    kept = (own - results) * share.part.normed_heads  # keys and values before their norm, which are kept apart
    kept += 0 if share.core_again and not ckpt else results + max(0, whole - own)
    held = (
        own + mixed + max(2 * whole, share.core_backward_workspace_bytes(rows) + whole) + share.graph_bytes(rows) * share.again
    )
    if ckpt:
        return 0, kept + held
    return kept, held + (whole + mixed) * share.core_again
