"""Durations of instructions in whole ns, for simulations of the step: by a profile, or as a plan carries them.

By a profile each instruction is one piece of `costs.sequential`, whose sums are the cost model `executed`:

- computations take what the profile has for the sub-layer, tensor-parallel degree and rows on the rank's kind of device; one
  of half a micro-batch half of that, the odd nanosecond in the second half (as in `schedule.simulate`);
- collectives and received messages cost by their bytes on the profile's network, between the devices of the group;
- copies and optimizers cost by bytes and parameters;
- the rest is free: what sends, slices, joins or marks, the loss (the head's own times include it), what comes before and after
  the matrices where tokens are shared (the matrices' times include it), sums on the host's processor, of which profiles have
  nothing, and the sum of the loss, 8 bytes.

With Muon in ZeRO's stage 1, whole gradients are summed: what reduces them to shards costs as much (`surrogate`).

Profiles are of whole samples, so that they have no costs for plans that cut samples (context parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, Program
from trainplan.formulations.costs.sequential.primitives import collective, device_step, host_copy, host_step
from trainplan.formulations.costs.sequential.stage_work import samples_of
from trainplan.formulations.costs.sequential.sublayer_time import UnitWork, step_savings, unit_work
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.optimizers import OPTIMIZERS, parameters_of_moments
from trainplan.profiling.profiles import Profile

BACKWARD = ", backward"  # ends names of sums in a backward pass, which may hide more of them than a forward pass does

Carried = dict[str, Any]


class ProfiledCosts:
    """Durations in whole ns of a plan's instructions by a profile. Called with a program and an instruction of it.

    A class of ranks is a set of ranks whose programs are equal up to samples and groups, so that one of them stands for all.
    kinds: the name of the kind of every device, by device number; None if no cluster is named. classes: by the one rank that
    represents a class, all ranks of the class, that rank included; an instruction takes as long as on the slowest kind of
    device and link of any of these ranks. Raises InputError if the profile lacks a shape, or the plan cuts samples (context
    parallelism).
    """

    def __init__(
        self,
        plan: Plan,
        profile: Profile,
        kinds: Sequence[str] | None = None,
        classes: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        if plan.pieces > 1:
            problem = f"is {str(plan.units[0].strategy)!r}, and profiles are of whole samples"
            raise InputError("plan", f"units[0].{plan.units[0].field}", problem, "judge it with --cost-model streams")
        self._profile, self._strategies, self._samples = profile, plan.strategies(), samples_of(plan)
        self._devices = plan.placement or range(plan.world)
        self._kinds, self._classes, self._size, self._digits = kinds, classes or {}, plan.stage_sizes[0], plan.digits
        self._alike = plan.alike_on(profile.network)
        self._known: dict[tuple[Any, ...], int] = {}
        self._work = cache(self._unit_work)

    def __call__(self, program: Program, instruction: Instruction) -> int:
        """The duration of an instruction, in whole ns."""
        if instruction.op.spec.is_free:
            return 0
        if instruction.grouped:
            return sum(self(program, message) for message in _received(instruction))
        key = (
            program.rank,
            instruction.op,
            instruction.unit,
            instruction.half,
            instruction.message_bytes,
            instruction.group,
        )
        if key not in self._known:
            self._known[key] = self._duration_ns(program, instruction)
        return self._known[key]

    def _duration_ns(self, program: Program, instruction: Instruction) -> int:
        """The duration of an instruction of this program in whole ns, computed from the profile: of its pass, transfer, copy
        or optimizer step. The result is not cached here."""
        spec, unit, size, profile = instruction.op.spec, instruction.unit, instruction.message_bytes, self._profile
        if spec.pass_time:
            assert unit is not None
            times = [getattr(self._work(unit, kind), spec.pass_time) for kind in self._kinds_of(program.rank)]
            return _half(max(times), instruction.half)
        if transfer := spec.transfer:
            if instruction.by_processor:
                return 0
            count = 1
            if spec.sums_partials and (instruction.op is not Op.GATHER_TOKENS or within_unit(instruction)):
                assert unit is not None
                count = profile.shapes[profile.units[unit].sublayer].reductions
            if instruction.op is Op.REDUCE_SCATTER_GRADIENTS and OPTIMIZERS[program.optimizer].whole_matrices:
                transfer = "all-reduce"
            groups = self._groups(program, instruction)
            return max(collective(profile, transfer, size, group, count) for group in groups)
        if spec.copied:
            return host_copy(profile, spec.copied, size)
        parameters = stepped_parameters(program, instruction)
        if spec.steps == "host-moments":
            return host_step(profile, parameters)
        assert unit is not None
        sublayer, strategy = profile.units[unit].sublayer, self._strategies[unit]
        return device_step(profile, parameters, *step_savings(profile, sublayer, strategy, program.optimizer, parameters))

    def _unit_work(self, unit: int, kind: str | None) -> UnitWork[int]:
        """The times in ns of everything that a device computes for one micro-batch of the unit (sub-layer) with index `unit`:
        forward pass, backward pass, recomputation and so on. kind: the name of the kind of device; None if no cluster is named,
        and for the slowest kind."""
        profile = self._profile
        return unit_work(profile, profile.units[unit].sublayer, self._strategies[unit], self._samples, kind)

    def _ranks(self, rank: int) -> Sequence[int]:
        """All ranks of the class of ranks with equal programs that `rank` represents, `rank` itself included."""
        return self._classes.get(rank, (rank,))

    def _kinds_of(self, rank: int) -> set[str | None]:
        """The names of the kinds of device that the ranks of a class run on, as a set. rank: the one rank whose program
        represents the class. {None} if no cluster is named."""
        kinds = self._kinds
        return {None} if kinds is None else {kinds[self._devices[rank]] for rank in self._ranks(rank)}

    def _groups(self, program: Program, instruction: Instruction) -> Iterable[tuple[int, ...]]:
        """The groups of devices in which all ranks that this program represents run an instruction, as tuples of device
        numbers: one group for each of these ranks, or a single one if all have equal links.

        A rank's index in its stage has one digit per level of parallelism. If the instruction's group lies within a stage, the
        group of another rank is found by shifting every member, digit by digit, by as much as that rank differs from the
        program's rank. A message goes to the same index in another stage.
        """
        rank, group, size = program.rank, instruction.group, self._size
        if len(self._ranks(rank)) == 1:
            yield tuple(self._devices[member] for member in group)
            return
        within = all(member // size == rank // size for member in group)
        ranks = (rank,) if self._alike or not (within or len(group) == 2) else self._ranks(rank)
        begin = rank - program.index_in_stage
        for other in ranks:
            if within:
                assert self._digits is not None
                members = sorted(
                    begin + self._digits.moved(member - begin, program.index_in_stage, other - begin) for member in group
                )
            else:
                members = [member + other - rank for member in group] if len(ranks) > 1 else list(group)
            yield tuple(self._devices[member] for member in members)


def stepped_parameters(program: Program, instruction: Instruction) -> int:
    """The number of parameters that an optimizer step, an instruction of this program, changes."""
    assert instruction.unit is not None
    moments = program.buffers[f"{instruction.op.spec.steps}.{instruction.unit}"] // program.stepped_bytes
    return parameters_of_moments(program.optimizer, moments, program.muon_parameter_count(instruction.unit))


def within_unit(gather: Instruction) -> bool:
    """Whether a gather of tokens under sequence parallelism runs within a unit (sub-layer), before or after its matrix
    multiplications, and not between two units."""
    return gather.writes[0].startswith(("entry-whole", "output-gradient-whole"))


def _half(time_ns: int, half: int | None) -> int:
    """The part of a time in ns that one half of a micro-batch (`half` 0 or 1) takes; an odd nanosecond goes to half 1. All of
    the time if `half` is None, for a whole micro-batch."""
    return time_ns if half is None else time_ns // 2 if half == 0 else time_ns - time_ns // 2


def _received(instruction: Instruction) -> list[Instruction]:
    """The receives among the messages of a point-to-point instruction, which may consist of several sends and receives. The
    duration of the instruction is the sum of the times of these receives."""
    return [message for message in instruction.messages if message.op is Op.RECEIVE]


class CarriedCosts:
    """Durations in ns of instructions, looked up in the table that a plan carries in its file, for simulating the plan without
    profile and cluster. They hold for every plan whose instructions have the same shapes, for instance with another schedule.
    Called with a program and an instruction of it."""

    def __init__(self, table: Carried) -> None:
        self._stages: list[dict[str, int]] = table["stages"]
        self._ranks: dict[str, dict[str, int]] = table.get("ranks", {})
        self._firsts: list[int] = table["first_units"]
        self._keys: dict[tuple[Any, ...], int] = {}

    def __call__(self, program: Program, instruction: Instruction) -> int:
        """The duration of an instruction, in whole ns. Raises InputError where the table lacks it."""
        if instruction.op.spec.is_free:
            return 0
        if instruction.grouped:
            return sum(self(program, message) for message in _received(instruction))
        key = (program.rank, *_shape(instruction))
        if key not in self._keys:
            name = name_of(program, instruction)
            time = self._look_up(program, name)
            self._keys[key] = _half(time, instruction.half) if instruction.op.spec.pass_time else time
        return self._keys[key]

    def _look_up(self, program: Program, name: str) -> int:
        """The time in ns of the instruction called `name` (see `name_of`) in the table's entry for the program's rank or, if
        that has none, for its stage; a name of a backward pass is also looked up without that suffix, as tables of earlier
        versions have it. Raises InputError if the table lacks it."""
        stage = self._firsts.index(program.units[0]) if program.units[0] in self._firsts else None
        for table in (self._ranks.get(str(program.rank), {}), {} if stage is None else self._stages[stage]):
            for candidate in (name, name.removesuffix(BACKWARD)):
                if candidate in table:
                    return table[candidate]
        fix = "give the cluster or the profile that it was planned with"
        raise InputError("plan", "predicted", f"does not say what {name!r} takes on rank {program.rank}", fix)


def carried(programs: Sequence[Program], durations: Callable[[Program, Instruction], int]) -> Carried:
    """The durations of all instructions of these programs, and of halves of their messages, as a table that a plan's JSON file
    holds. durations: gives the duration in ns of an instruction of a program.

    The table's entries: `stages`: one dict per pipeline stage, from an instruction's name (see `name_of`) to its time in ns.
    `ranks`: by rank (as text), the times that differ from the times of the first program of the rank's stage; left out if
    empty. `first_units`: the index of the first unit (sub-layer) of each stage.
    """
    firsts = sorted({program.units[0] for program in programs})
    stages: list[dict[str, int]] = [{} for _ in firsts]
    ranks: dict[str, dict[str, int]] = {}
    for program in programs:
        known: set[tuple[Any, ...]] = set()
        stage = stages[firsts.index(program.units[0])]
        for instruction in (single for i in program.instructions for single in (_received(i) if i.grouped else [i])):
            if instruction.op.spec.is_free or _shape(instruction) in known:
                continue
            known.add(_shape(instruction))
            for part in _with_halves(instruction):
                whole = replace(part, half=None) if part.op.spec.pass_time else part
                name, time = name_of(program, part), durations(program, whole)
                if stage.setdefault(name, time) != time:
                    ranks.setdefault(str(program.rank), {})[name] = time
    return {"first_units": firsts, "stages": stages} | ({"ranks": ranks} if ranks else {})


def _with_halves(instruction: Instruction) -> list[Instruction]:
    """The instruction itself and, if half of its micro-batch moves exactly half of its bytes, a copy of it for that half: so
    that a table of durations has an entry for both."""
    size = instruction.message_bytes
    if not instruction.op.spec.has_halves or instruction.half is not None or size % 2:
        return [instruction]
    return [instruction, replace(instruction, half=0, message_bytes=size // 2)]


def _shape(instruction: Instruction) -> tuple[Any, ...]:
    """The fields of an instruction by which its duration may differ from that of another instruction of the same rank, as a
    key of a dict."""
    subject = (instruction.reads or instruction.writes or ("",))[0].partition(".")[0]
    return instruction.op, instruction.unit, instruction.half, instruction.message_bytes, subject, is_backward(instruction)


def is_backward(instruction: Instruction) -> bool:
    """Whether an instruction is a collective of tensor-parallel ranks (sum of partial results, gather or scatter of tokens)
    that belongs to a backward pass, or to the recomputation for it."""
    if not instruction.op.spec.sums_partials:
        return False
    moved = instruction.reads[0], (*instruction.writes, "")[0]
    return any("gradient" in buffer for buffer in moved) or AGAIN in instruction.args


def name_of(program: Program, instruction: Instruction) -> str:
    """The name under which a plan's table carries the duration of an instruction: its operation, then the sub-layer and its
    strategy (parallel layout) or the kind of buffer that is moved, then bytes (for a computation, the bytes of its input).
    Half a computation has the name of the whole. Example: 'all-reduce <sub-layer> <strategy>, 4096 bytes'."""
    op, spec, unit, size = instruction.op, instruction.op.spec, instruction.unit, instruction.message_bytes
    backward = BACKWARD * is_backward(instruction)
    if spec.priced_by_buffer:
        buffer_kind = (*instruction.reads, *instruction.writes)[0].partition(".")[0]
        return f"{op} {buffer_kind}{'' if op is Op.RECEIVE else f' of unit {unit}'}, {size} bytes{backward}"
    if unit is None:
        return f"{op}, {size} bytes"
    if spec.pass_time:
        source = instruction.reads[1 if spec.kind == "backward" else 0]
        size = program.buffers[source] * (1 if instruction.half is None else 2)
    elif spec.steps:
        size = stepped_parameters(program, instruction) * program.stepped_bytes
    return f"{op} {program.model.key_of(program.model.units[unit])} {program.strategies[unit]}, {size} bytes{backward}"
