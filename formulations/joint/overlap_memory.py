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
from trainplan.profiling.models.sublayers import LAYER_KINDS, Attention, HeadPieces, KeyShare

FREED_LATE = 2  # units


class OverlapMemory:
    """The bytes that buffers hold in addition to a sub-layer's own memory where collectives and copies overlap computations:
    parameters gathered ahead, gradients freed late, and what context-parallel ranks exchange."""

    def __init__(
        self,
        lanes: LaneTimes,
        pieces: Mapping[str, Attention],
        element_bytes: int,
        gradient_bytes: int,
        recipe: Recipe | None,
        hidden: bool,
    ) -> None:
        """lanes: the model's times by sub-layer, of which the profile and the numbers of parameters are used. pieces: by name,
        the attentions that work on pieces of samples (context parallelism). element_bytes: bytes of one parameter.
        gradient_bytes: bytes of the gradient of one parameter. recipe: the recipe of low-precision matrix multiplications, None
        if there is none. hidden: whether units may have their inputs on the host."""
        self.lanes, self.profile, self.pieces, self.recipe, self.hidden = lanes, lanes.profile, pieces, recipe, hidden
        self.element_bytes, self.gradient_bytes = element_bytes, gradient_bytes
        self.consecutive_gradient_bytes = cache(self._consecutive_gradient_bytes)

    def delayed_free_bytes(self, sublayer: str, strategy: Strategy, setting: Setting) -> int:
        """Bytes of one device that overlap holds longer, or earlier, than a sub-layer's own pass needs them: whole gradients
        of sub-layers whose reduction is still running; with context parallelism, one buffer of exchanged keys and values;
        and where inputs may be on the host, the inputs being copied out, the next input, and the next messages in both
        directions.

        sublayer: the sub-layer's name in the profile. setting: devices of a stage and samples per micro-batch. strategy:
        the sub-layer's parallelism and recomputation.
        """
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
        """Two numbers of bytes of one device for an attention whose samples are cut into pieces (context parallelism): those
        kept from forward to backward pass in addition to what an attention without exchange keeps for the rank's tokens, and
        those held only while it computes; (0, 0) for other sub-layers.

        If ranks exchange keys and values, the second number counts those of all tokens, their gradients, and a second copy in
        the order of ranks. If ranks exchange heads by all-to-all (each then computes some heads of all tokens), it counts the
        queries, keys and values of the rank's own tokens, the gradients of the results of the attention's core (scores,
        softmax, weighted values) and, doubled, the gradients of the core's inputs. rows: number of samples on one rank.
        sublayer: the sub-layer's name in the profile. strategy: the sub-layer's parallelism and recomputation."""
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
        if share.recomputes_projections:
            return joined, whole + computed
        return joined + share.graph_bytes(rows), whole

    def largest_bytes(self, strategy: Strategy) -> int:
        """The bytes of the parameters of the largest sub-layer on one tensor-parallel rank under a strategy."""
        return max(self.lanes.parameters(unit, strategy) for unit in self.lanes.counts) * self.element_bytes

    def copied_bytes(self, sublayer: str, layout: Strategy) -> tuple[int, int]:
        """Bytes of one device for the low-precision copies of weights that a recipe (such as FP8) needs, as two numbers: for
        the sub-layer's own weights, held during the whole step, and for gathered weights (ZeRO stage 3), held while they
        are used. One of them is 0. layout: the strategy without recomputation. sublayer: the sub-layer's name in the
        profile.
        """
        kinds = {name: self.profile.shapes[name].kind for name in self.lanes.counts}
        if layout.zero_stage == 3:
            gathered = [
                self.lanes.parameters(unit.sublayer, layout)
                for unit in self.profile.units
                if kinds[unit.sublayer] in LAYER_KINDS
            ]
            return 0, ceil(copied_bytes(gathered, self.recipe, self.element_bytes, 3))
        weights = [self.lanes.parameters(sublayer, layout)] if kinds[sublayer] in LAYER_KINDS else []
        return ceil(copied_bytes(weights, self.recipe, self.element_bytes, layout.zero_stage)), 0

    def _consecutive_gradient_bytes(self, layout: Strategy) -> int:
        """The largest number of bytes of the whole gradients of FREED_LATE consecutive sub-layers on one tensor-parallel rank;
        they are held together while their reduction is still running. layout: the strategy without recomputation.
        """
        units = [self.lanes.parameters(unit.sublayer, layout) for unit in self.profile.units]
        sums = (sum(units[index : index + FREED_LATE]) for index in range(len(units)))
        return max(sums) * self.gradient_bytes


def _share(part: Attention, tp: int, shared: bool = False, modules: tuple[Module, ...] = ()) -> KeyShare:
    """The buffers in which context-parallel ranks exchange keys and values, or heads, of an attention whose samples are cut
    into pieces. part: the attention. tp: the tensor-parallel degree. shared: whether tensor-parallel ranks split the tokens
    between matrix multiplications. modules: the modules that are recomputed.
    """
    return (HeadPieces if part.by_heads else KeyShare)(part, tp, shared, modules)


def _heads_bytes(share: HeadPieces, rows: int, ckpt: bool) -> tuple[int, int]:
    """Bytes of one device for an attention whose context-parallel ranks exchange heads, as two numbers: those kept from
    forward to backward pass in addition to what an attention without exchange keeps, and those held while it computes. Kept
    are the results for the rank's tokens, and copies of keys and values. Held are the rank's own queries, keys and values,
    the gradients of the attention core's results and, doubled, the gradients of its inputs.

    share: the attention's buffers on one rank. rows: number of samples on one rank. ckpt: whether the whole sub-layer is
    recomputed.
    """
    own, whole, mixed, results = (
        of(rows) for of in (share.own_bytes, share.whole_bytes, share.mixed_bytes, share.results_bytes)
    )
    kept = (own - results) * share.sublayer.normed_heads  # keys and values before their norm, which are kept apart
    kept += 0 if share.recomputes_core and not ckpt else results + max(0, whole - own)
    held = (
        own
        + mixed
        + max(2 * whole, share.core_backward_workspace_bytes(rows) + whole)
        + share.graph_bytes(rows) * share.recomputes_projections
    )
    if ckpt:
        return 0, kept + held
    return kept, held + (whole + mixed) * share.recomputes_core
