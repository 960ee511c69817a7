"""Small models, and random plans for them, by kind of plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product
from math import lcm, prod
from typing import Any

from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.strategy import MODULES, Module, decision_tree, parse_strategy
from trainplan.formulations.schedule.orders import PassOrder, PlanSchedule, most_sliced
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.models.sublayers import why_not_shared

# Vocabularies that no tensor-parallel degree divides; models that are tied, untied, with post-norm, with grouped queries.
# Without dropout a second step on the same batch has a smaller loss; DROPPING are these models with dropout.
_GPT2 = {"n_embd": 32, "n_head": 4, "n_inner": 64, "n_positions": 16, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
_OTHER = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 16}
_BERT = {**_OTHER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = load_model("gpt2", 12, "float64").with_fields(n_layer=3, vocab_size=67, **_GPT2)
UNTIED = GPT2.with_fields(n_layer=2, vocab_size=65, tie_word_embeddings=False)
BERT = load_model("bert-large", 12, "float64").with_fields(num_hidden_layers=2, vocab_size=61, **_BERT)
LLAMA = load_model("llama2-7b", 12, "float64").with_fields(
    num_hidden_layers=2, vocab_size=63, num_key_value_heads=4, head_dim=8, **_OTHER
)
DROPPING = (
    GPT2.with_fields(embd_pdrop=0.2, attn_pdrop=0.3, resid_pdrop=0.1),
    UNTIED.with_fields(resid_pdrop=0.2),
    BERT.with_fields(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1),
    LLAMA.with_fields(attention_dropout=0.3),
)
SCHEDULES: tuple[PassOrder, ...] = ("1f1b", "gpipe")


def plan_of(
    model: Model,
    strategies: list[str],
    world: int,
    samples: int = 8,
    micro_batches: int = 1,
    cuts: Sequence[int] = (),
    schedule: PassOrder = "1f1b",
    shares: Sequence[int] | None = None,
    sliced: int = 0,
) -> Plan:
    """A plan on `world` ranks whose stages have as many ranks each, in order.

    Args:
        model: the model.
        strategies: the strategy of each unit, as a text.
        world: the number of ranks.
        samples: of one step, over all ranks.
        micro_batches: of one step.
        cuts: the first units of the stages after the first one.
        schedule: the order of passes.
        shares: the micro-batches of each data-parallel replica, where they are uneven.
        sliced: the number of micro-batches that begin in halves.
    """
    units: list[dict[str, Any]] = [{"name": u.name, "strategy": s} for u, s in zip(model.units, strategies, strict=True)]
    size = world // (len(cuts) + 1)
    bounds = list(pairwise([0, *cuts, len(units)]))
    return load_plan(
        {
            "model": model.shape(),
            "model_digest": model.digest,
            "world": world,
            "memory_bytes": 2**40,
            "batch": {"global_samples": samples, "micro_batches": micro_batches, "shares": shares and list(shares)},
            "schedule": schedule,
            "sliced": sliced,
            "stages": [
                {"ranks": list(range(i * size, (i + 1) * size)), "first_unit": begin, "last_unit": end - 1}
                for i, (begin, end) in enumerate(bounds)
            ],
            "units": units,
        }
    )


def pipeline(
    model: Model, stages: int, micro_batches: int, schedule: PassOrder = "1f1b", rows: int = 2, sliced: int = 0
) -> Plan:
    """A pipeline with one device for each stage and stages of equal numbers of units; `rows` samples in a micro-batch."""
    units = len(model.units)
    cuts = [stage * units // stages for stage in range(1, stages)]
    return plan_of(model, ["single"] * units, stages, rows * micro_batches, micro_batches, cuts, schedule, sliced=sliced)


def random_plan(rng: random.Random, world: int = 4, model: Model | None = None, stages: int | None = None) -> Plan:
    """A random plan with equal stages: any cuts, 1F1B or GPipe, up to 8 micro-batches, and for each unit any strategy of
    Galvatron's whole decision tree, including dp with sdp."""
    model = model or rng.choice([GPT2, UNTIED, BERT, LLAMA])
    units = len(model.units)
    stages = stages or rng.choice([p for p in (1, 2, 4, 8) if p <= min(world, units)])
    size = world // stages
    cuts = sorted(rng.sample(range(1, units), stages - 1))
    tree = [s for s in decision_tree(size, takeaway3=False) if s.degree("tp") in model.tp_degrees(size)]
    micro_batches = rng.choice([1, 2, 3, 5, 8] if stages > 1 else [1, 1, 2, 3])
    samples = micro_batches * size * rng.choice([1, 2])
    schedule: PassOrder = rng.choice(["1f1b", "1f1b", "gpipe"])
    return plan_of(model, [str(rng.choice(tree)) for _ in range(units)], world, samples, micro_batches, cuts, schedule)


def all_strategies(size: int) -> list[str]:
    """Every strategy of a group of `size` ranks, as texts, without recomputation; degrees need not be powers of two."""
    strategies = []
    for count in range(4):
        for degrees in product(range(2, size + 1), repeat=count):
            if prod(degrees) == size:
                strategies += [
                    "-".join(f"{paradigm}{degree}" for paradigm, degree in zip(order, degrees, strict=True))
                    for order in permutations(("dp", "sdp", "tp"), count)
                ]
    return ["single" if size == 1 else text for text in strategies]


def random_unlike_plan(rng: random.Random, world: int = 4, sliced: bool = False) -> Plan:
    """A random plan whose stages have different numbers of ranks, in any order, each unit with any strategy of its stage."""
    model = rng.choice([GPT2, UNTIED, BERT, LLAMA])
    stages = rng.randint(2 if sliced else 1, min(world, 4))
    ranks, cuts = rng.sample(range(world), world), sorted(rng.sample(range(1, world), stages - 1))
    groups = [sorted(ranks[a:b]) for a, b in pairwise([0, *cuts, world])]
    micro_batches = rng.choice([1, 2, 3, 5])
    if sliced:
        return _on_groups(rng, model, groups, micro_batches, "1f1b", rng.randint(1, most_sliced(stages, micro_batches)))
    return _on_groups(rng, model, groups, micro_batches, rng.choice(SCHEDULES))


def random_interleaved_plan(rng: random.Random, world: int = 4) -> Plan:
    """A random interleaved plan: two or more stages on each rank, in turn, on groups of any sizes, with any cuts."""
    model = rng.choice([GPT2, UNTIED, BERT, LLAMA])
    units = len(model.units)
    depth = rng.choice([p for p in (2, 3, 4) if p <= world and 2 * p <= units])
    chunks = rng.randint(2, units // depth)
    ranks, cuts = rng.sample(range(world), world), sorted(rng.sample(range(1, world), depth - 1))
    if rng.random() < 0.5 and world % depth == 0:
        cuts = list(range(world // depth, world, world // depth))
    groups = [sorted(ranks[a:b]) for a, b in pairwise([0, *cuts, world])] * chunks
    return _on_groups(rng, model, groups, rng.choice([1, 2, 3]) * depth, "interleaved-1f1b")


def random_digits_plan(rng: random.Random, world: int = 6, model: Model | None = None) -> Plan:
    """A random plan with equal stages, whose size need not be a power of two, and whose strategies divide the ranks of a stage
    alike (`Plan.regular`)."""
    while True:
        model = model or rng.choice([GPT2, UNTIED, BERT, LLAMA])
        units = len(model.units)
        stages = rng.choice([p for p in range(1, min(world, units) + 1) if world % p == 0])
        size = world // stages
        tree = [s for s in all_strategies(size) if parse_strategy(s).degree("tp") in (1, 2, 4)]
        chosen = rng.sample(tree, min(3, len(tree)))
        micro_batches, schedule = rng.choice([1, 2, 3, 5]), rng.choice(SCHEDULES)
        cuts, samples = sorted(rng.sample(range(1, units), stages - 1)), micro_batches * size
        strategies = [rng.choice(chosen) for _ in range(units)]
        plan = plan_of(model, strategies, world, samples, micro_batches, cuts, schedule)
        if plan.regular:
            return plan


def random_regular_interleaved_plan(rng: random.Random, world: int = 4, model: Model | None = None) -> Plan:
    """A random interleaved plan: two or more stages on each rank, in turn, on equal groups of consecutive ranks, whose size is
    a power of two."""
    model = model or rng.choice([GPT2, UNTIED, BERT, LLAMA])
    units = len(model.units)
    depth = rng.choice([p for p in (2, 4) if p <= world and 2 * p <= units])
    size, chunks = world // depth, rng.randint(2, units // depth)
    groups = [list(range(stage * size, (stage + 1) * size)) for stage in range(depth)] * chunks
    return _on_groups(rng, model, groups, rng.choice([1, 2, 3]) * depth, "interleaved-1f1b")


def _on_groups(
    rng: random.Random,
    model: Model,
    groups: Sequence[list[int]],
    micro_batches: int,
    schedule: PlanSchedule,
    sliced: int = 0,
) -> Plan:
    """A random plan whose stages have these groups of ranks, with any cuts, and for each unit any strategy of its stage."""
    units, stages = len(model.units), len(groups)
    begins = [0, *sorted(rng.sample(range(1, units), stages - 1)), units]
    strategies = []
    for group, (begin, end) in zip(groups, pairwise(begins), strict=True):
        for unit in model.units[begin:end]:
            tree = [text for text in all_strategies(len(group)) if unit.sublayer.runs_on(parse_strategy(text).degree("tp"))]
            strategies.append(rng.choice(tree) + rng.choice(["", "", "-ckpt"]))
    divisor = lcm(*(parse_strategy(text).data_degree for text in strategies)) * (2 if sliced else 1)
    plan = plan_of(model, ["single"] * units, 1, micro_batches * divisor, micro_batches).model_dump()
    plan |= {"world": len({rank for group in groups for rank in group}), "schedule": schedule, "sliced": sliced}
    plan["stages"] = [
        {"ranks": group, "first_unit": begin, "last_unit": end - 1}
        for group, (begin, end) in zip(groups, pairwise(begins), strict=True)
    ]
    plan["units"] = [{"name": unit["name"], "strategy": text} for unit, text in zip(plan["units"], strategies, strict=True)]
    return load_plan(plan)


def random_sliced_plan(rng: random.Random, world: int = 4, model: Model | None = None, stages: int | None = None) -> Plan:
    """A random plan as of `random_plan`, under 1F1B, with at least one sliced micro-batch, and any number that is possible."""
    model = model or rng.choice([GPT2, UNTIED, BERT, LLAMA])
    stages = stages or rng.choice([p for p in (2, 4, 8) if p <= min(world, len(model.units))])
    units, size = len(model.units), world // stages
    cuts = sorted(rng.sample(range(1, units), stages - 1))
    tree = [s for s in decision_tree(size, takeaway3=False) if s.degree("tp") in model.tp_degrees(size)]
    micro_batches = rng.choice([1, 2, 3, 5, 8])
    samples = micro_batches * size * rng.choice([2, 4])
    strategies = [str(rng.choice(tree)) for _ in range(units)]
    sliced = rng.randint(1, most_sliced(stages, micro_batches))
    return plan_of(model, strategies, world, samples, micro_batches, cuts, sliced=sliced)


def with_zero(rng: random.Random, plan: Plan) -> Plan:
    """The plan with a random ZeRO stage for each unit that has an sdp level."""
    strategies = (
        replace(strategy, zero=rng.choice([1, 2, 3])) if strategy.degree("sdp") > 1 else strategy
        for strategy in plan.strategies()
    )
    return plan.changed(units=[unit.laid_out(strategy) for unit, strategy in zip(plan.units, strategies, strict=True)])


PRECISIONS = (
    Precision(),
    Precision(master="float32"),
    Precision(master="float32", gradients="float32"),
)


def with_precision(rng: random.Random, plan: Plan, precision: Precision | None = None) -> Plan:
    """The plan in bfloat16, with this precision of master copies and gradients, or a random one."""
    model = plan.planned_model().in_dtype("bfloat16")
    precision = rng.choice(PRECISIONS) if precision is None else precision
    return plan.changed(model=model.shape(), model_digest=model.digest, precision=precision)


def random_zero_plan(rng: random.Random, world: int = 4) -> Plan:
    """A random plan of any kind with sdp levels, a random ZeRO stage for each unit, and stage 1 or 2 for at least one."""
    kinds = [random_unlike_plan, random_interleaved_plan]
    if world & (world - 1) == 0:
        kinds += [random_plan, random_sliced_plan]
    while True:
        plan = with_zero(rng, rng.choice(kinds)(rng, world))
        if any(strategy.gathers_updates for strategy in plan.strategies()):
            return plan


def uneven_plan(
    model: Model,
    shares: Sequence[int],
    stages: int = 1,
    tp: int = 1,
    rows: int = 1,
    schedule: PassOrder = "1f1b",
    rng: random.Random | None = None,
    sliced: int = 0,
) -> Plan:
    """A plan whose data-parallel replicas have these numbers of micro-batches (`shares`), of `rows` samples each.

    With `rng`, its cuts and recomputation are random; without, its stages have equal numbers of units.
    """
    units, size = len(model.units), len(shares) * tp
    cuts = [stage * units // stages for stage in range(1, stages)]
    strategies = [f"dp{len(shares)}" + (f"-tp{tp}" if tp > 1 else "")] * units
    if rng:
        cuts = sorted(rng.sample(range(1, units), stages - 1))
        strategies = [strategy + rng.choice(["", "-ckpt"]) for strategy in strategies]
    return plan_of(model, strategies, size * stages, rows * sum(shares), max(shares), cuts, schedule, shares, sliced)


def random_uneven_plan(rng: random.Random, world: int = 4, model: Model | None = None, stages: int | None = None) -> Plan:
    """A random plan with uneven shares: any cuts, any schedule, any split of a stage into replicas and tensor parallelism, and
    up to 5 micro-batches for each replica."""
    model = model or rng.choice([GPT2, UNTIED, BERT, LLAMA])
    stages = stages or rng.choice([p for p in (1, 2, 4, 8) if p <= min(world // 2, len(model.units))])
    size = world // stages
    tp = rng.choice([t for t in (1, 2, 4, 8) if 2 * t <= size and t in model.tp_degrees(size)])
    shares = [rng.randint(1, 5) for _ in range(size // tp)]
    return uneven_plan(model, shares, stages, tp, rng.choice([1, 2]), rng.choice(SCHEDULES), rng)


def sharing_tokens(rng: random.Random, plan: Plan) -> Plan:
    """The plan with sequence parallelism in a random half of the units that support it."""
    units = []
    for unit, described in zip(plan.units, plan.planned_model().units, strict=True):
        strategy, tp = unit.strategy, unit.strategy.degree("tp")
        shares = tp > 1 and why_not_shared(described.sublayer, tp) is None and rng.random() < 0.5
        units.append(unit.laid_out(replace(strategy, sequence_parallel=True)) if shares else unit)
    return plan.changed(units=units)


def recomputing_modules(rng: random.Random, plan: Plan, modules: Sequence[Module] = MODULES) -> Plan:
    """The plan with a random choice of these modules recomputed in every unit that is not recomputed as a whole."""
    units = []
    for unit in plan.units:
        chosen = tuple(sorted(module for module in modules if rng.random() < 0.6))
        units.append(unit if unit.strategy.ckpt else unit.laid_out(replace(unit.strategy, modules=chosen)))
    return plan.changed(units=units)
