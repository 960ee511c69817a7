"""Time of a step by discrete-event simulation: when every instruction of all ranks' programs runs, from the programs alone.

All programs are simulated together. An instruction begins at the latest of these times, and takes the time that it costs:

- its lane is free. Lanes are those of the back-end: one for all (`serial`), one for computations and one for the rest
  (`fused`), or one for each stream of the program (`threads`, `streams`); or those of other frameworks (`overlapped`):
  parameters and gradients of data-parallel ranks travel in parallel with computations, as do copies to and from the host and,
  of interleaved stages, messages, while computations wait for tensor-parallel sums and the messages of other pipelines;
- the instructions that it waits for are done (on one lane they always are);
- a collective: all members have come to it; it then takes the least of their times, since whatever one of them takes longer is
  waiting for the others;
- a receive: its message has been sent. The message then takes the receiver's time. A send costs the sender its own duration
  (nothing, by a profile), and waits for nobody; one grouped with a receive goes off when the two begin.

So every start is a maximum of sums of durations: a step never gets shorter where a duration grows, and parallel lanes never
take longer than one for all. With one lane these are the rules of `formulations.schedule.simulate`, pass by pass; with several
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
    """The lane (queue of instructions) on which trainplan's own executor runs an instruction by default."""
    return instruction.stream


def _overlapped(instruction: Instruction) -> str:
    """The lane (queue of instructions that run in order) of an instruction in other frameworks: 'copy' or 'copy-out' for
    copies between device and host, 'data' for collectives among data-parallel replicas, 'compute' for everything else."""
    spec = instruction.op.spec
    if spec.is_copy:
        return "copy-out" if spec.kind == "copy-out" else "copy"
    return "data" if spec.among_replicas else "compute"


def _interleaved(instruction: Instruction) -> str:
    """The lane (queue of instructions that run in order) of an instruction in other frameworks if ranks have several stages:
    'messages' for sends and receives, which travel in parallel with passes; else 'copy', 'copy-out', 'data' (collectives among
    data-parallel replicas) or 'compute'."""
    return "messages" if instruction.op.spec.kind == "message" else _overlapped(instruction)


def lane_of(backend: Lanes, program: Program) -> Callable[[Instruction], str]:
    """A function that gives the lane (queue of instructions that run in order) of each instruction of a program. backend: a
    back-end of trainplan's executor, or 'overlapped' for the lanes of other frameworks."""
    return _interleaved if backend == "overlapped" and len(program.chunks) > 1 else LANE_OF[backend]


Overlap = Literal["overlapped"]
OTHERS: tuple[Overlap, ...] = get_args(Overlap)  # lanes of other frameworks, not of a back-end
Lanes = Backend | Overlap
LANE_OF: dict[Lanes, Callable[[Instruction], str]] = {
    "serial": lambda _: "all",
    "fused": lambda instruction: "compute" if instruction.stream == "compute" else "rest",
    "threads": _stream,
    "streams": _stream,
    "overlapped": _overlapped,
}


class Operation(NamedTuple):
    """An instruction of a rank with its lane (the queue that it ran on), its start and its end in ns from the step's
    beginning."""

    rank: int
    lane: str
    instruction: Instruction
    start_ns: int
    end_ns: int


@in_one_line
@dataclass(frozen=True, eq=False)
class TimeWalk:
    """The result of simulating a step: when the instructions of each program run, in ns from the step's beginning.

    rounds: the simulated programs, in compact form: a round is a stretch of instructions that repeats, once per micro-batch or
    group of micro-batches. backend: the lanes that were simulated. start_ns, end_ns: [program][instruction], in issue order;
    time spent waiting comes before an instruction's start. A step of very many rounds is simulated with fewer (see
    `timing.leaps`): shorter: in that case a second simulation with still fewer rounds, else None. more: how often the
    difference between the two simulations is to be added to get the whole step.
    """

    rounds: tuple[Rounds, ...]
    backend: Lanes
    start_ns: tuple[list[int], ...]
    end_ns: tuple[list[int], ...]
    shorter: TimeWalk | None = None
    more: int = 0

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The simulated programs, with the instructions of all their rounds written out."""
        return tuple(program.whole for program in self.rounds)

    @cached_property
    def step_ns(self) -> int:
        """The time of the step in ns: until the last instruction of any rank is done, rounds left out of the simulation
        included."""
        return self.of_all(lambda walk: max(max(ends, default=0) for ends in walk.end_ns))

    def of_all(self, value: Callable[[TimeWalk], int]) -> int:
        """A quantity in ns for the whole step, also if rounds were left out of the simulation: each of those adds the same to
        it. value: computes the quantity from a simulation, such as the end of its last instruction."""
        mine = value(self)
        return mine if self.shorter is None else mine + self.more * (mine - value(self.shorter))

    def assure_whole(self) -> None:
        """Raises InputError if rounds of micro-batches were left out of this simulation; called by whatever shows every
        instruction."""
        if self.shorter is not None:
            mine, less = self.rounds[0], self.shorter.rounds[0]
            number = mine.few.micro_batches + (mine.count + self.more * (mine.count - less.count)) * mine.size
            raise InputError("plan", "batch.micro_batches", f"is {number}", f"give at most {FOLLOWED} to show every one")

    def operations(self) -> Iterator[Operation]:
        """All instructions that take time, program by program, in issue order. Raises InputError if rounds of micro-batches
        were left out of the simulation."""
        self.assure_whole()
        for program, starts, ends in zip(self.programs, self.start_ns, self.end_ns, strict=True):
            lane = lane_of(self.backend, program)
            for instruction, start, end in zip(program.instructions, starts, ends, strict=True):
                if end > start:
                    yield Operation(program.rank, lane(instruction), instruction, start, end)

    def passes(self) -> tuple[tuple[Event, ...], ...]:
        """For each program, the forward and backward passes of its micro-batches or their halves, in the order in which they
        begin.

        In an event, `device` is the index of the program's first stage among the first stages of all programs; `stage` is the
        same index for the rank's first stage, and the later stages of the rank (interleaved schedules) are numbered on from
        there. A pass runs from the first to the last of its computations and collectives within the stage; `ready_ns` is when
        its message begins, if it has one. Work after the last backward pass (optimizer, loss) belongs to no pass. Raises
        InputError if rounds of micro-batches were left out of the simulation.
        """
        self.assure_whole()
        firsts = sorted({program.units[0] for program in self.programs})
        return tuple(
            _passes(program, firsts.index(program.units[0]), len(firsts), starts, ends)
            for program, starts, ends in zip(self.programs, self.start_ns, self.end_ns, strict=True)
        )


def _passes(program: Program, device: int, devices: int, starts: Sequence[int], ends: Sequence[int]) -> tuple[Event, ...]:
    """The forward and backward passes of one program through each of its stages, as events in ns, in the order in which they
    begin. device: the program's index along the pipeline. devices: number of devices along the pipeline, by which the stages
    of one device are numbered apart. starts, ends: of each instruction in ns. A micro-batch's instructions belong to its
    backward pass once its loss is computed or its hidden states are sent on (for a micro-batch in halves: those of the second
    half; both halves have one backward pass)."""
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
    """Simulate the programs of all ranks together, on the lanes of a back-end of trainplan's executor or of other frameworks.
    A program is one rank's instructions for a training step; a lane is a queue of instructions that run in order.

    duration_ns: gives the time of an instruction of a program in whole ns, waiting not included. stands_for: for each rank
    that has no program here, the rank whose program is the same (None: every rank has a program). Raises Stuck if programs
    wait for each other for ever, and InputError for more micro-batches than can be simulated.
    """

    def walked(rounds: Sequence[Rounds]) -> TimeWalk:
        """The simulation of these programs, round by round."""
        laid = tuple(_on_lanes(program_rounds, backend) for program_rounds in rounds) if backend in OTHERS else rounds
        walk = _Walk(laid, duration_ns, backend, stands_for or {})
        walk.run()
        return TimeWalk(tuple(rounds), backend, tuple(walk.starts), tuple(walk.ends))

    rounds = tuple(program if isinstance(program, Rounds) else Rounds(program) for program in programs)
    if (found := extrapolated(rounds, walked)) is None:
        return walked(rounds)
    longer, shorter, more = found
    return replace(longer, shorter=shorter, more=more)


def _on_lanes(rounds: Rounds, backend: Lanes) -> Rounds:
    """A copy of a program in compact form (`rounds`) whose instructions wait for each other as the lanes of `backend` require,
    instead of the lanes that the instructions name. A lane is a queue of instructions that run in order."""
    lane = lane_of(backend, rounds.few)
    instructions = with_waits(rounds.few.instructions, lane)
    if lane is _interleaved:
        instructions = _whole_passes(instructions)
    return replace(rounds, few=replace(rounds.few, instructions=instructions))


def _whole_passes(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions of a program, with the first instruction of each pass waiting for the message (hidden states or their
    gradient) that the pass needs: so recomputation for a backward pass waits for it, too, as it does in other frameworks."""
    changed = list(instructions)
    for position, instruction in enumerate(instructions):
        messages = tuple(index for index in instruction.waits if instructions[index].op.spec.kind == "message")
        first = position
        while messages and first > max(messages) + 1 and _same_pass(instructions[first - 1], instruction):
            first -= 1
        if first < position:
            changed[first] = changed[first].changed(waits=tuple({*changed[first].waits, *messages}))
    return tuple(changed)


def _same_pass(before: Instruction, after: Instruction) -> bool:
    """Whether instruction `before`, which comes right before `after` on the lane of computations, belongs to the same unit
    (sub-layer) and the same micro-batch or half. False if `before` is a message, copy or collective among replicas. A lane is
    a queue of instructions that run in order."""
    of, spec = (before.unit, before.micro_batch, before.half), before.op.spec
    alone = spec.kind != "message" and not spec.among_replicas and not spec.is_copy
    return alone and of == (after.unit, after.micro_batch, after.half)


Channel = tuple[int, int]  # sender's and receiver's rank, or first unit of the receiver's stage: see `_Walk.channel`


class _Step(NamedTuple):
    """The fields of an instruction that the simulation uses. lane: the queue that it runs on. duration_ns: its time without
    waiting. waits: indices of instructions that must be done first. gathers: whether it is a collective of several programs.
    exchanges: whether it is a message."""

    lane: str
    duration_ns: int
    waits: tuple[int, ...]
    gathers: bool
    exchanges: bool
    instruction: Instruction


class _Walk:
    """A simulation under way. Every program (one per rank, or one per class of equal ranks) is followed in issue order until
    it needs something that another one does first; the order in which programs are taken changes no number. A round is a
    stretch of instructions that a program repeats, once per micro-batch or group of micro-batches.

    starts, ends: [program][instruction] -> ns, appended to as the simulation goes on; the length of `ends[program]` is the
    index of the program's next instruction. waiting: a queue of indices of programs that can go on.
    """

    def __init__(self, rounds: Sequence[Rounds], duration_ns: Durations, backend: Lanes, stands_for: Mapping[int, int]) -> None:
        serial = backend == "serial"
        self.rounds = rounds
        self.ranks = [program.few.rank for program in rounds]
        self.walked = {rank: index for index, rank in enumerate(self.ranks)}
        self.index_of = self.walked | {rank: self.walked[other] for rank, other in stands_for.items()}
        self.members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.steps = [
            [
                _Step(
                    lane_of(backend, program.few)(i),
                    duration_ns(program.few, i),
                    () if serial else i.waits,
                    i.op.spec.kind == "collective" and len(self.present(i.group)) > 1,
                    i.op.spec.kind == "message" and len(i.group) > 1,
                    i,
                )
                for i in program.few.instructions
            ]
            for program in rounds
        ]
        self.starts: list[list[int]] = [[] for _ in rounds]
        self.ends: list[list[int]] = [[] for _ in rounds]
        self.free: list[dict[str, int]] = [defaultdict(int) for _ in rounds]  # by program: until when each lane is busy
        self.sent: list[int] = [-1] * len(rounds)  # the latest instruction whose send has gone off
        self.stands = bool(stands_for)
        # When messages were sent through each channel; how many of them each receiver has taken; and the receivers that have
        # come to the next one before it is sent.
        self.messages: dict[Channel, list[int]] = defaultdict(list)
        self.taken: dict[tuple[Channel, int], int] = defaultdict(int)
        self.missing: dict[Channel, list[int]] = defaultdict(list)
        self.meetings: dict[tuple[int, ...], list[tuple[int, int, _Step]]] = defaultdict(
            list
        )  # members that have come, and when

    def run(self) -> None:
        """Follow all programs to their ends, filling `starts` and `ends`. Raises Stuck if programs wait for each other for
        ever."""
        self.waiting = deque(range(len(self.rounds)))
        while self.waiting:
            index = self.waiting.popleft()
            while (number := len(self.ends[index])) < len(self.rounds[index]) and self.advance(index, number):
                pass
        if any(len(ends) < len(rounds) for rounds, ends in zip(self.rounds, self.ends, strict=True)):
            raise Stuck

    def advance(self, program: int, first: int) -> bool:
        """Follow the program with index `program` from its instruction `first` to the end of the current round, appending to
        `starts` and `ends`. Returns True if it came to the end of the round, and False if it now waits for another program:
        for members of a collective, or for a message that is not sent yet; that program then puts it back into the queue
        `waiting`."""
        starts, ends, free = self.starts[program], self.ends[program], self.free[program]
        begin, stop = self.rounds[program].stretch(first)
        steps = self.steps[program]
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
                self.meetings[members].append((program, start, step))
                if len(self.meetings[members]) < len(members):
                    return False
                self.meet(members)
                continue
            if exchanges:
                sent = self.exchange(program, number, step, start)
                if sent is None:
                    return False
                start = sent
            end = start + duration
            starts.append(start)
            ends.append(end)
            free[lane] = end
        return True

    def present(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """The indices of the programs of the ranks in `group`, ascending. Members that have no program are left out: they are
        taken to arrive together with the others."""
        if group not in self.members:
            self.members[group] = tuple(sorted(self.walked[rank] for rank in group if rank in self.walked))
        return self.members[group]

    def meet(self, members: tuple[int, ...]) -> None:
        """Run a collective to which all members have come: it begins when the last one arrives, takes the shortest of their
        times, and is appended to `starts` and `ends` of all. members: the indices of the members' programs. All of them but the
        last arrived one, which is being followed, are put back into the queue `waiting`."""
        arrived = self.meetings.pop(members)
        start = max(moment for _, moment, _ in arrived)
        end = start + min(step.duration_ns for _, _, step in arrived)
        for index, _, step in arrived:
            self.starts[index].append(start)
            self.ends[index].append(end)
            self.free[index][step.lane] = end
        self.waiting.extend(index for index, _, _ in arrived[:-1])

    def exchange(self, index: int, number: int, step: _Step, start: int) -> int | None:
        """The time in ns at which an instruction's messages begin, or None if a message that it receives is not sent yet. Its
        sends go off in either case, and the programs that waited for them go on. index: the program's index; number: the
        instruction's index in it; start: when the instruction could begin by its lane and waits."""
        rank, messages = self.ranks[index], step.instruction.messages
        ends = [(message, peer) for message in messages for peer in message.group if peer != rank]
        if self.sent[index] < number:
            self.sent[index] = number
            gone = start + step.duration_ns * (step.instruction.op is Op.SEND)
            for key in [self.channel(index, peer) for message, peer in ends if message.op is Op.SEND]:
                self.messages[key].append(gone)
                self.waiting.extend(self.missing.pop(key, ()))
        received = [self.index_of[peer] for message, peer in ends if message.op is Op.RECEIVE and peer in self.index_of]
        channels = Counter(self.channel(other, rank) for other in received)
        for key, count in channels.items():
            if len(self.messages[key]) < self.taken[key, index] + count:
                self.missing[key].append(index)
                return None
        for key, count in channels.items():
            self.taken[key, index] += count
            start = max(start, self.messages[key][self.taken[key, index] - 1])
        return start

    def channel(self, sender: int, receiver: int) -> Channel:
        """The key of the channel of messages from the program with index `sender` to the rank `receiver`. It is (sender,
        receiver); if programs stand for classes of ranks it is (sender, first unit of the receiver's stage), since messages to
        all ranks of a stage then go through one channel."""
        if not self.stands or receiver not in self.index_of:
            return sender, receiver
        return sender, self.rounds[self.index_of[receiver]].few.units[0]
