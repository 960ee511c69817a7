"""The time walk: when every instruction of all ranks' programs runs, and how long the step takes, from the programs alone.

All programs are walked together. An instruction begins at the latest of these moments, and takes the time that it costs:

- its lane is free. Lanes are those of the back-end: one for all (`serial`), one for computations and one for the rest
  (`fused`), or one for each stream of the program (`threads`, `streams`); or those of other frameworks (`overlapped`):
  parameters and gradients of data-parallel ranks travel beside computations, as do copies to and from the host and, of
  interleaved stages, messages, while tensor-parallel sums and the messages of other pipelines have these wait;
- the instructions that it waits for are done (on one lane they always are);
- a collective: all members have come to it; it then takes the least of their times, since what one of them takes longer is
  waiting for the others;
- a receive: its message has been sent. The message then takes the receiver's time. A send costs the sender what it is said to
  cost (nothing, by a profile), and waits for nobody; one grouped with a receive goes off when the two begin.

So every moment is a maximum of sums of durations: a step never gets shorter where a duration grows, and lanes beside each other
never take longer than one for all. With one lane these are the rules of `formulations.step.timeline`, pass by pass; with lanes
those of H3T's simulator (`formulations.memory_switches.simulation`). Both are asserted in tests/execution/test_time_walk.py.

Programs may be those of a few ranks that stand for others (`stands_for`): a member of a collective that is not among them
arrives with the one that stands for it, and what no program sends is there at once. They may be in rounds, whose instructions
are then priced once.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.analysis.timing.leaps import FOLLOWED, extrapolated
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, with_waits
from trainplan.execution.steady_state import Rounds
from trainplan.formulations.schedule.orders import Pass, Stuck
from trainplan.formulations.schedule.simulate import Event
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError

Durations = Callable[[Program, Instruction], int]


def _stream(instruction: Instruction) -> str:
    return instruction.stream


def _overlapped(instruction: Instruction) -> str:
    spec = instruction.op.spec
    if spec.is_copy:
        return "copy-out" if spec.kind == "copy-out" else "copy"
    return "data" if spec.among_replicas else "compute"


def _interleaved(instruction: Instruction) -> str:
    """As `_overlapped`, of ranks with several stages: their messages travel beside passes."""
    return "messages" if instruction.op.spec.kind == "message" else _overlapped(instruction)


def lane_of(backend: Lanes, program: Program) -> Callable[[Instruction], str]:
    """The lane of each instruction of a program."""
    return _interleaved if backend == "overlapped" and len(program.chunks) > 1 else LANE_OF[backend]


Overlap = Literal["overlapped"]
OTHERS: tuple[Overlap, ...] = get_args(Overlap)  # lanes that are no back-end's
Lanes = Backend | Overlap
LANE_OF: dict[Lanes, Callable[[Instruction], str]] = {
    "serial": lambda _: "all",
    "fused": lambda instruction: "compute" if instruction.stream == "compute" else "beside",
    "threads": _stream,
    "streams": _stream,
    "overlapped": _overlapped,
}


class Operation(NamedTuple):
    """An instruction on its lane, from its start to its end."""

    rank: int
    lane: str
    instruction: Instruction
    start_ns: int
    end_ns: int


@in_one_line
@dataclass(frozen=True, eq=False)
class TimeWalk:
    """When the instructions of each program run, in ns from the step's beginning; start_ns and end_ns are by program, in issue
    order. What an instruction waits comes before its start.

    Programs of very many rounds are here with fewer of them (see `walk.leaps`). shorter: a walk of a few rounds less still, and
    more: how often what this one has beside it comes in addition.
    """

    rounds: tuple[Rounds, ...]
    backend: Lanes
    start_ns: tuple[list[int], ...]
    end_ns: tuple[list[int], ...]
    shorter: TimeWalk | None = None
    more: int = 0

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The programs with all of their instructions."""
        return tuple(each.whole for each in self.rounds)

    @cached_property
    def step_ns(self) -> int:
        """Until the last instruction of any rank is done."""
        return self.of_all(lambda walk: max(max(ends, default=0) for ends in walk.end_ns))

    def of_all(self, value: Callable[[TimeWalk], int]) -> int:
        """A time that every further round adds the same to, from walks with fewer rounds."""
        mine = value(self)
        return mine if self.shorter is None else mine + self.more * (mine - value(self.shorter))

    def assure_whole(self) -> None:
        """Raises InputError where not all rounds are here, for what shows each of them."""
        if self.shorter is not None:
            mine, less = self.rounds[0], self.shorter.rounds[0]
            number = mine.few.micro_batches + (mine.count + self.more * (mine.count - less.count)) * mine.size
            raise InputError("plan", "batch.micro_batches", f"is {number}", f"give at most {FOLLOWED} to show every one")

    def operations(self) -> Iterator[Operation]:
        """What takes time, by program, in issue order. Raises InputError, see `assure_whole`."""
        self.assure_whole()
        for program, starts, ends in zip(self.programs, self.start_ns, self.end_ns, strict=True):
            lane = lane_of(self.backend, program)
            for instruction, start, end in zip(program.instructions, starts, ends, strict=True):
                if end > start:
                    yield Operation(program.rank, lane(instruction), instruction, start, end)

    def passes(self) -> tuple[tuple[Event, ...], ...]:
        """By program, the forward and backward passes of micro-batches or their halves, in the order in which they begin.

        `device` and `stage` of an event are the place of the program's stage among those of all programs here; later stages of
        the same ranks are numbered on from there. A pass runs
        from the first to the last of its computations and collectives within the stage; `ready_ns` is when its message
        begins, if it has one. What is behind the last backward pass (optimizer, loss) is no part of any. Raises InputError, see
        `assure_whole`.
        """
        self.assure_whole()
        firsts = sorted({program.units[0] for program in self.programs})
        return tuple(
            _passes(program, firsts.index(program.units[0]), len(firsts), starts, ends)
            for program, starts, ends in zip(self.programs, self.start_ns, self.end_ns, strict=True)
        )


def _passes(program: Program, device: int, devices: int, starts: Sequence[int], ends: Sequence[int]) -> tuple[Event, ...]:
    """The passes of one program, through each of its stages. Those of a micro-batch turn from forward to backward where its
    loss is computed or its hidden states are sent, of the second half where they go in halves; the backward pass of both halves
    is one."""
    turned, ready = set[tuple[int, int]](), dict[Pass, int]()
    stage_of = {unit: device + chunk * devices for chunk, units in enumerate(program.chunks) for unit in units}
    spans: dict[Pass, tuple[int, int]] = {}
    for instruction, start, end in zip(program.instructions, starts, ends, strict=True):
        for message in instruction.messages:
            number, unit = message.micro_batch, message.unit
            if number is None or unit is None:
                continue
            stage = stage_of[unit if unit in stage_of else unit - 1]  # what follows a stage is named by the unit after it
            passed = (number, stage) in turned
            task = Pass("backward", number, stage) if passed else Pass("forward", number, stage, message.half)
            if message.op is Op.RECEIVE:
                ready[task] = start
            elif message.op.spec.of_unit != "boundary":
                spans[task] = (min(spans.get(task, (start, 0))[0], start), end)
            hidden = message.op is Op.SEND and message.reads[0].startswith("hidden")
            if (hidden or message.op is Op.LOSS) and message.half != 0:
                turned.add((number, stage))
    events = [Event(task, device, ready.get(task, start), start, end) for task, (start, end) in spans.items()]
    return tuple(sorted(events, key=lambda event: (event.start_ns, event.end_ns)))


def time_walk(
    programs: Sequence[Program | Rounds],
    duration_ns: Durations,
    backend: Lanes = "serial",
    stands_for: Mapping[int, int] | None = None,
) -> TimeWalk:
    """Walk all programs together, on the lanes of a back-end or of other frameworks.

    duration_ns: what an instruction of a program takes, in whole ns, waiting left out. stands_for: of each rank that has no
    program here, the one among the programs that does the same (left out: nobody). Raises Stuck where programs wait for each
    other for ever, and InputError for more micro-batches than can be walked.
    """

    def walked(rounds: Sequence[Rounds]) -> TimeWalk:
        laid = tuple(_on_lanes(each, backend) for each in rounds) if backend in OTHERS else rounds
        walk = _Walk(laid, duration_ns, backend, stands_for or {})
        walk.run()
        return TimeWalk(tuple(rounds), backend, tuple(walk.starts), tuple(walk.ends))

    rounds = tuple(program if isinstance(program, Rounds) else Rounds(program) for program in programs)
    if (found := extrapolated(rounds, walked)) is None:
        return walked(rounds)
    longer, shorter, more = found
    return replace(longer, shorter=shorter, more=more)


def _on_lanes(rounds: Rounds, backend: Lanes) -> Rounds:
    """The same program, whose instructions wait for those of these lanes, in place of those of their streams."""
    lane = lane_of(backend, rounds.few)
    instructions = with_waits(rounds.few.instructions, lane)
    if lane is _interleaved:
        instructions = _whole_passes(instructions)
    return replace(rounds, few=replace(rounds.few, instructions=instructions))


def _whole_passes(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The same instructions, of which those of a pass wait for its message from the first on: what is computed again for a
    backward pass, too, as frameworks have it."""
    made = list(instructions)
    for place, each in enumerate(instructions):
        messages = tuple(index for index in each.waits if instructions[index].op.spec.kind == "message")
        first = place
        while messages and first > max(messages) + 1 and _same_pass(instructions[first - 1], each):
            first -= 1
        if first < place:
            made[first] = made[first].changed(waits=tuple({*made[first].waits, *messages}))
    return tuple(made)


def _same_pass(before: Instruction, each: Instruction) -> bool:
    """Whether an instruction right before another one is of the same unit and micro-batch, on the lane of computations."""
    of, spec = (before.unit, before.micro_batch, before.half), before.op.spec
    alone = spec.kind != "message" and not spec.among_replicas and not spec.is_copy
    return alone and of == (each.unit, each.micro_batch, each.half)


Channel = tuple[int, int]


class _Step(NamedTuple):
    """What the walk looks at in an instruction. gathers: in a collective; exchanges: in a message."""

    lane: str
    duration_ns: int
    waits: tuple[int, ...]
    gathers: bool
    exchanges: bool
    instruction: Instruction


class _Walk:
    """The walk under way. Every rank is followed in issue order as far as nothing is missing that another one does first; the
    order in which ranks are taken changes no number."""

    def __init__(self, rounds: Sequence[Rounds], duration_ns: Durations, backend: Lanes, stands_for: Mapping[int, int]) -> None:
        serial = backend == "serial"
        self.rounds = rounds
        self.ranks = [each.few.rank for each in rounds]
        self.walked = {rank: index for index, rank in enumerate(self.ranks)}
        self.place_of = self.walked | {rank: self.walked[other] for rank, other in stands_for.items()}
        self.members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.steps = [
            [
                _Step(
                    lane_of(backend, each.few)(i),
                    duration_ns(each.few, i),
                    () if serial else i.waits,
                    i.op.spec.kind == "collective" and len(self.present(i.group)) > 1,
                    i.op.spec.kind == "message" and len(i.group) > 1,
                    i,
                )
                for i in each.few.instructions
            ]
            for each in rounds
        ]
        self.starts: list[list[int]] = [[] for _ in rounds]
        self.ends: list[list[int]] = [[] for _ in rounds]
        self.free: list[dict[str, int]] = [defaultdict(int) for _ in rounds]  # of each lane, until when it is taken
        self.sent: list[int] = [-1] * len(rounds)  # the latest instruction whose send has gone off
        self.stands = bool(stands_for)
        # When messages were sent through each channel; how many of them each receiver has taken; and the receivers that have
        # come to the next one before it is sent.
        self.messages: dict[Channel, list[int]] = defaultdict(list)
        self.taken: dict[tuple[Channel, int], int] = defaultdict(int)
        self.missing: dict[Channel, list[int]] = defaultdict(list)
        self.meetings: dict[tuple[int, ...], list[tuple[int, int, _Step]]] = defaultdict(list)  # who has come, and when

    def run(self) -> None:
        self.waiting = deque(range(len(self.rounds)))
        while self.waiting:
            place = self.waiting.popleft()
            while (number := len(self.ends[place])) < len(self.rounds[place]) and self.advance(place, number):
                pass
        if any(len(ends) < len(rounds) for rounds, ends in zip(self.rounds, self.ends, strict=True)):
            raise Stuck

    def advance(self, place: int, first: int) -> bool:
        """Follow a program from its instruction `first` to the end of a round, or to where it has to wait: then False."""
        starts, ends, free = self.starts[place], self.ends[place], self.free[place]
        begin, stop = self.rounds[place].stretch(first)
        steps = self.steps[place]
        for number in range(first, first + stop - begin):
            step = steps[number + begin - first]
            lane, duration, waits, gathers, exchanges, instruction = step
            start = free[lane]
            for index in waits:
                end = ends[index + first - begin]
                if end > start:
                    start = end
            if gathers:
                members = self.present(instruction.group)
                self.meetings[members].append((place, start, step))
                if len(self.meetings[members]) < len(members):
                    return False
                self.meet(members)
                continue
            if exchanges:
                sent = self.exchange(place, number, step, start)
                if sent is None:
                    return False
                start = sent
            end = start + duration
            starts.append(start)
            ends.append(end)
            free[lane] = end
        return True

    def present(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """Places of the programs of a group's members. Who has no program arrives with the others: so all see one group."""
        if group not in self.members:
            self.members[group] = tuple(sorted(self.walked[rank] for rank in group if rank in self.walked))
        return self.members[group]

    def meet(self, members: tuple[int, ...]) -> None:
        """All have come to their next collective: it begins with the last one."""
        arrived = self.meetings.pop(members)
        start = max(moment for _, moment, _ in arrived)
        end = start + min(step.duration_ns for _, _, step in arrived)
        for place, _, step in arrived:
            self.starts[place].append(start)
            self.ends[place].append(end)
            self.free[place][step.lane] = end
        self.waiting.extend(place for place, _, _ in arrived[:-1])

    def exchange(self, place: int, number: int, step: _Step, start: int) -> int | None:
        """When messages begin; None where one that is received is not sent yet."""
        rank, messages = self.ranks[place], step.instruction.messages
        ends = [(message, peer) for message in messages for peer in message.group if peer != rank]
        if self.sent[place] < number:
            self.sent[place] = number
            gone = start + step.duration_ns * (step.instruction.op is Op.SEND)
            for key in [self.channel(place, peer) for message, peer in ends if message.op is Op.SEND]:
                self.messages[key].append(gone)
                self.waiting.extend(self.missing.pop(key, ()))
        received = [self.place_of[peer] for message, peer in ends if message.op is Op.RECEIVE and peer in self.place_of]
        channels = Counter(self.channel(other, rank) for other in received)
        for key, count in channels.items():
            if len(self.messages[key]) < self.taken[key, place] + count:
                self.missing[key].append(place)
                return None
        for key, count in channels.items():
            self.taken[key, place] += count
            start = max(start, self.messages[key][self.taken[key, place] - 1])
        return start

    def channel(self, sender: int, receiver: int) -> Channel:
        """What a program's messages to a rank go through. Where programs stand for others, messages to all ranks of a stage go
        through one; the stage is known by its first unit."""
        if not self.stands or receiver not in self.place_of:
            return sender, receiver
        return sender, self.rounds[self.place_of[receiver]].few.units[0]
