"""Programs of plans with memory switches: their order, their waits, and what each switch changes."""

import random
from dataclasses import replace
from typing import Any

import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.program import Program
from trainplan.formulations.memory_switches.problem import LayerRecord, Solution, load
from trainplan.formulations.plan.switches import ALL_ON, Switches, SwitchName

from tests.helpers.plans import GPT2, UNTIED, plan_of
from tests.helpers.switch_instances import simulated_step
from tests.helpers.switch_plans import FREE, LARGER, random_switch_plan, switch_plan

UNITS = len(UNTIED.units)
NONE = Switches()
# Of each operation that takes time: the simulator's name for it, and the column of its time.
TIMED = {
    Op.GATHER_PARAMETERS: ("all-gather", "all_gather_ns"),
    Op.REDUCE_SCATTER_GRADIENTS: ("reduce-scatter", "reduce_scatter_ns"),
    Op.PREFETCH_SHARD: ("prefetch shard", "prefetch_parameter_ns"),
    Op.OFFLOAD_GRADIENT: ("offload gradient", "offload_gradient_ns"),
    Op.OFFLOAD_HIDDEN: ("offload hidden", "offload_hidden_ns"),
    Op.PREFETCH_HIDDEN: ("prefetch hidden", "prefetch_hidden_ns"),
    Op.FORWARD: ("forward", "forward_ns"),
    Op.FORWARD_WITHOUT_GRAPH: ("forward without graph", "forward_without_graph_ns"),
    Op.RECOMPUTE: ("recompute", "forward_ns"),
    Op.BACKWARD: ("backward", "backward_ns"),
    Op.HOST_OPTIMIZER_STEP: ("optimizer", "optimizer_ns"),
}


def _program(switches: list[Switches], nvlink: bool = True, world: int = 2) -> Program:
    return compile_plan(switch_plan(UNTIED, world, switches, nvlink))[0]


def _instance(layers: list[dict[str, int]], nvlink: bool) -> dict[str, Any]:
    settings = {"nvlink": nvlink, "memory_bytes": 1}
    return {"problem": "memory-switches", "version": 1, **settings, "layers": layers}


def _random_layers(rng: random.Random) -> list[dict[str, int]]:
    """Times alone."""
    names = [name for name in LayerRecord.model_fields if name != "name"]
    return [{name: rng.randint(1, 1000) if name.endswith("_ns") else 0 for name in names} for _ in range(UNITS)]


def _random(rng: random.Random) -> tuple[list[Switches], bool]:
    return [rng.choice(FREE) for _ in range(UNITS)], rng.choice([True, False])


@pytest.mark.parametrize(("world", "plans"), [(1, 60), (2, 80), (4, 80), (8, 40), (64, 5)])
def test_random_switch_plans_are_sound(world: int, plans: int) -> None:
    rng = random.Random(world)
    for _ in range(plans):
        assert check(compile_plan(random_switch_plan(rng, world))) == []


def test_programs_are_issued_and_wait_as_the_step_is_simulated() -> None:
    """Times given, a program's lanes and waits alone lead to the simulator's timeline, operation by operation."""
    rng = random.Random(0)
    for _ in range(150):
        switches, nvlink = _random(rng)
        layers = _random_layers(rng)
        free: dict[str, int] = {}
        ends: list[int] = []
        found = []
        for instruction in _program(switches, nvlink).instructions:
            start = max([free.get(instruction.stream, 0), *(ends[index] for index in instruction.waits)])
            what, column = TIMED.get(instruction.op, (None, None))
            ends.append(start + (layers[instruction.unit][column] if column else 0))
            free[instruction.stream] = ends[-1]
            if what:
                found.append((instruction.stream, what, instruction.unit, start, ends[-1]))
        known = simulated_step(load(_instance(layers, nvlink)), Solution(tuple(switches)))
        assert found == [(o.lane, o.what, o.layer, o.start_ns, o.end_ns) for o in known.timeline]
        assert max(ends) == known.time_ns


def test_memory_is_that_of_the_simulated_step() -> None:
    """To the byte, except for the loss, where other lanes take no time. Left out is what an economical backward pass issues
    late, which an analysis in the order of issue counts later than the step does."""
    rng = random.Random(2)
    options = [entry for entry in FREE if not entry.eco_backward]
    for _ in range(40):
        model, nvlink = rng.choice(LARGER), rng.choice([True, False])
        switches = [rng.choice(options) for _ in model.units]
        program = compile_plan(switch_plan(model, 2, switches, nvlink, 8))[0]
        layers = []
        for position, unit in enumerate(model.units):
            part, rows, shard = unit.sublayer, 4, program.buffers[f"parameter.{position}"]
            output, kept = part.output_bytes(rows, 1), part.kept_bytes(rows, 1)
            forward = output + kept + part.forward_workspace_bytes(rows, 1)
            gradient = part.input_bytes(rows) if position else 0
            layers.append(
                {
                    **{name: 0 for name in LayerRecord.model_fields if name.endswith("_ns")},
                    **dict.fromkeys(("forward_ns", "backward_ns"), 1),
                    "input_bytes": part.input_bytes(rows),
                    "output_bytes": output,
                    "graph_bytes": kept,
                    **{f"gathered_{name}_bytes": 2 * shard for name in ("parameter", "gradient")},
                    **{f"partitioned_{name}_bytes": shard for name in ("parameter", "gradient")},
                    **{f"{name}_peak_bytes": forward for name in ("forward", "forward_without_graph")},
                    "backward_peak_bytes": gradient + part.backward_workspace_bytes(rows, 1),
                }
            )
        found = simulated_step(load(_instance(layers, nvlink)), Solution(tuple(switches))).peak_bytes
        assert found == memory_walk(program).peak_bytes - program.buffers["loss"]


def test_computations_wait_for_their_data_alone() -> None:
    """Never for an offload: only for what brings parameters, or hidden states back, or for a synchronisation."""
    rng, seen = random.Random(1), set()
    for _ in range(100):
        switches, nvlink = _random(rng)
        program = _program(switches, nvlink)
        for instruction in program.instructions:
            if instruction.stream == "compute" and instruction.op is not Op.SYNCHRONISE:
                waited = {program.instructions[index].op for index in instruction.waits}
                assert waited <= {Op.GATHER_PARAMETERS, Op.PREFETCH_HIDDEN}, instruction
                seen |= waited
    assert len(seen) == 2


def _indices(program: Program, op: Op, unit: int) -> list[int]:
    return [index for index, i in enumerate(program.instructions) if (i.op, i.unit) == (op, unit)]


def _turn(program: Program) -> int:
    """The end of the forward pass, before anything comes in for the backward pass."""
    return _indices(program, Op.LOSS, UNITS - 1)[0]


def _alone(unit: int, base: Switches, name: SwitchName, nvlink: bool = True) -> tuple[Program, Program]:
    """Programs with all units as `base`, and with one switch of one unit turned the other way."""
    one = [base] * UNITS
    other = [*one[:unit], replace(base, **{name: not getattr(base, name)}), *one[unit + 1 :]]
    return _program(one, nvlink), _program(other, nvlink)


def _ends(program: Program, index: int) -> int:
    """Bytes held once that instruction is done: those while the next runs, less what it makes and works with."""
    following = program.instructions[index + 1]
    known = set(program.persistent)
    for instruction in program.instructions[: index + 1]:
        known = (known | {*instruction.writes}) - {*instruction.frees}
    made = sum(program.buffers[name] for name in following.writes if name not in known and not name.startswith("host-"))
    return memory_walk(program).during_bytes[index + 1] - following.workspace_bytes - made


@pytest.mark.parametrize("unit", range(1, UNITS - 1))
def test_each_memory_switch_alone_holds_less_between_the_passes(unit: int) -> None:
    """To the byte: the graph; the input; the gathered parameters; the shard, which is gone outside its use too."""
    for name, buffer in (
        ("ckpt", f"graph.{unit}.0"),
        ("offload_hidden", f"hidden.{unit}.0"),
        ("partition", f"gathered.{unit}"),
        ("lazy_prefetch", f"parameter.{unit}"),
    ):
        off, on = _alone(unit, Switches(ckpt=name == "offload_hidden"), name)  # type: ignore[arg-type]
        size = off.buffers[buffer]
        assert size > 0
        assert _ends(off, _turn(off)) - _ends(on, _turn(on)) == size, name
        assert off.persistent_bytes - on.persistent_bytes == (size if name == "lazy_prefetch" else 0)
        on_host = [memory_walk(program).host_bytes for program in (off, on)]
        assert on_host[1] - on_host[0] == (size if name == "offload_hidden" else 0)


def _order(program: Program, *wanted: tuple[Op, int]) -> list[int]:
    """Where each first comes after the ones before it."""
    indices: list[int] = []
    for op, unit in wanted:
        indices.append(next(index for index in _indices(program, op, unit) if not indices or index > indices[-1]))
    return indices


@pytest.mark.parametrize("nvlink", [True, False])
def test_economical_forward_offloads_before_it_fetches(nvlink: bool) -> None:
    base = Switches(ckpt=True, offload_hidden=True, lazy_prefetch=True)
    off, on = _alone(2, base, "eco_forward", nvlink)
    fetch = [(Op.PREFETCH_SHARD, 3), (Op.GATHER_PARAMETERS, 3)]
    late, early = _order(off, *fetch, (Op.OFFLOAD_HIDDEN, 2)), _order(on, (Op.OFFLOAD_HIDDEN, 2), *fetch)
    assert late[2] - late[0] == early[2] - early[0] == 2
    # The next unit's whole parameters come in after the offload, but before the computation in both.
    assert all(_order(p, (Op.GATHER_PARAMETERS, 3), (Op.FORWARD_WITHOUT_GRAPH, 2)) for p in (off, on))
    differing = [a != b for a, b in zip(_bare(off), _bare(on), strict=True)]
    assert sum(differing) == 3, "nothing else changes"


def _bare(program: Program) -> list[tuple[Op, int | None]]:
    return [(i.op, i.unit) for i in program.instructions]


@pytest.mark.parametrize("nvlink", [True, False])
def test_economical_backward_fetches_after_the_computation(nvlink: bool) -> None:
    """So what the next segment needs is not there yet while it begins: the memory analysis holds that much less at its
    computation."""
    base = Switches(ckpt=True, offload_hidden=True, partition=True, lazy_prefetch=True)
    off, on = _alone(2, base, "eco_backward", nvlink)
    for program, economical in ((off, False), (on, True)):
        (computed,) = _indices(program, Op.BACKWARD, 2)
        fetched = _indices(program, Op.GATHER_PARAMETERS, 1)[-1], *_indices(program, Op.PREFETCH_HIDDEN, 1)
        assert all((index > computed) is economical for index in fetched)
        if economical:
            (mark,) = _indices(program, Op.MARK, 2)
            assert mark == computed - 1
            assert all(mark in _before(program, index) and computed not in _before(program, index) for index in fetched)
        prefetched = _indices(program, Op.PREFETCH_SHARD, 1)[1]
        assert (prefetched > computed) is (economical and not nvlink)
    less = [p.buffers["gathered.1"] + p.buffers["prefetched.1.0"] for p in (off, on)]
    # With NVLink the gradient of the unit after is offloaded later too, and the next shard waits for its all-gather.
    more = off.buffers["gradient.3"] + off.buffers["parameter.1"] if nvlink else 0
    held = [memory_walk(p).during_bytes[_indices(p, Op.RECOMPUTE, 2)[0]] for p in (off, on)]
    assert less[0] == less[1]
    assert held[0] - held[1] == less[0] - more


def _before(program: Program, position: int) -> set[int]:
    """Instructions surely done before one begins."""
    found: set[int] = set()
    last: dict[str, int] = {}
    before: list[set[int]] = []
    for index, instruction in enumerate(program.instructions[: position + 1]):
        found = set(instruction.waits) | ({last[instruction.stream]} if instruction.stream in last else set())
        found = found.union(*(before[earlier] for earlier in found))
        before.append(found)
        last[instruction.stream] = index
    return found


@pytest.mark.parametrize("nvlink", [True, False])
def test_synchronised_segments_begin_once_all_lanes_are_done(nvlink: bool) -> None:
    base = replace(ALL_ON, segment_sync=False)
    off, on = _alone(2, base, "segment_sync", nvlink)
    assert len(_indices(off, Op.SYNCHRONISE, 2)) == 0
    indices = _indices(on, Op.SYNCHRONISE, 2)
    assert len(indices) == 3, "forward, backward, optimizer"
    for index in indices:
        assert _before(on, index) == set(range(index))
        assert all(index in _before(on, later) for later in range(index + 1, len(on.instructions)))
    assert [i for n, i in enumerate(_bare(on)) if n not in indices] == _bare(off), "nothing else changes"


def test_the_optimizer_begins_once_all_lanes_are_done() -> None:
    program = _program([NONE] * UNITS)
    (first,) = _indices(program, Op.HOST_OPTIMIZER_STEP, 0)
    assert _before(program, first) == set(range(first))


def test_without_nvlink_copies_run_on_the_lane_of_communication() -> None:
    for nvlink in (True, False):
        program = _program([ALL_ON] * UNITS, nvlink)
        lanes = {i.stream for i in program.instructions if i.op.spec.is_copy}
        assert lanes == {"copy" if nvlink else "communication"}
        assert {i.stream for i in program.instructions if i.op is Op.GATHER_PARAMETERS} == {"communication"}


def test_the_device_holds_nothing_of_the_host() -> None:
    """The memory analysis counts what lies on the device alone; the host's share is the states, what is offloaded, and a tied
    matrix."""
    program = compile_plan(switch_plan(GPT2, 2, [ALL_ON] * len(GPT2.units)))[0]
    walk = memory_walk(program)
    assert program.persistent_bytes == 8, "the loss: every shard is prefetched lazily"
    states = 4 * sum(program.buffers[f"parameter.{unit}"] for unit in program.units)
    hidden = sum(program.buffers[f"hidden.{unit}.0"] for unit in program.units)
    assert walk.host_bytes == states + hidden + GPT2.tied_elements * GPT2.element_bytes
    heavier = replace(program, buffers={n: s * (1000 if n.startswith("host-") else 1) for n, s in program.buffers.items()})
    assert memory_walk(heavier).peak_bytes == walk.peak_bytes
    assert memory_walk(heavier).host_bytes == 1000 * walk.host_bytes


def test_the_processor_itself_steps_and_sums_a_tied_matrix() -> None:
    """So that whoever issues to a GPU knows for what copies to the host must be done."""
    for model, more in ((GPT2, {Op.REDUCE_TIED}), (UNTIED, set())):
        program = compile_plan(switch_plan(model, 2, [ALL_ON] * len(model.units)))[0]
        assert {i.op for i in program.instructions if i.by_processor} == {Op.HOST_OPTIMIZER_STEP, *more}
    plain = compile_plan(plan_of(GPT2, ["sdp2"] * len(GPT2.units), 2))[0]
    assert not any(i.by_processor for i in plain.instructions)
    assert memory_walk(plain).host_bytes == 0


def test_back_ends_with_overlap_never_hold_less() -> None:
    rng = random.Random(9)
    for _ in range(60):
        program = compile_plan(random_switch_plan(rng, 2))[0]
        serial = memory_walk(program).peak_bytes
        assert all(memory_walk(program, backend).peak_bytes >= serial for backend in ("fused", "threads", "streams"))


def test_all_switches_together_hold_the_least() -> None:
    """For every setting that is the same for all units, at the turn between the passes; what says when to copy changes nothing
    there."""
    held = {entry: _ends(p, _turn(p)) for entry in FREE for p in [_program([entry] * UNITS)]}
    least = {entry for entry in FREE if held[entry] == min(held.values())}
    assert least == {entry for entry in FREE if {"ckpt", "offload_hidden", "partition", "lazy_prefetch"} <= set(entry.names)}
    most = {entry for entry in FREE if held[entry] == max(held.values())}
    assert most == {entry for entry in FREE if set(entry.names) <= {"eco_forward", "eco_backward", "segment_sync"}}
