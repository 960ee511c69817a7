"""Plans with Muon: what ranks hold and run, against torch's own optimizers on one process."""

import os
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.program import Program
from trainplan.execution.run.unit_state import make_unit
from trainplan.execution.runtimes.torch.refusals import refusals
from trainplan.execution.training.muon import MatricesWithAdamW
from trainplan.execution.training.single_process import Reference, batch_tokens
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.costs.sequential.stage_work import samples_of
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Paradigm, Strategy
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.precision import Precision

from tests.execution.test_precision import profile_of
from tests.helpers.measured import kernel_bytes, memory_follows_the_walk
from tests.helpers.plans import BERT, GPT2, LLAMA, PRECISIONS, UNTIED, plan_of, random_plan, with_precision
from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all

# Of what decoders train, as their formats name it in this chain: matrices between embedding and head, packed ones apart.
PACKED = {"qkv.weight": 3, "kv.weight": 2}
MATRICES = ("qkv.weight", "q.weight", "kv.weight", "out.weight", "up.weight", "gate.weight", "down.weight")


def with_muon(plan: Plan, **fields: Any) -> Plan:
    return plan.changed(optimizer="muon", **fields)


def muon_plan(model: Model, strategy: str, world: int, micro_batches: int = 2, cuts: tuple[int, ...] = ()) -> Plan:
    return with_muon(plan_of(model, [strategy] * len(model.units), world, 2 * world * micro_batches, micro_batches, cuts))


class ByTorch:
    """A model's steps by torch alone: its forward pass and autograd, torch.optim.Muon for matrices, AdamW for the rest; of
    packed tensors each matrix is a parameter of its own."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.values = model, []
        matrices, others = list[Tensor](), dict[int, Tensor]()
        for position, unit in enumerate(model.units):
            whole = torch_units.whole_parameters(unit.sublayer, torch_units.unit_seed(model, position, seed))
            values: dict[str, list[Tensor]] = {}
            for name, value in whole.items():
                parts = list(value.unbind(0)) if name in PACKED else [value]
                assert len(parts) == PACKED.get(name, 1)
                values[name] = [part.clone().requires_grad_() for part in parts]
                if name in MATRICES and unit.kind not in ("embedding", "head"):
                    matrices += values[name]
                else:
                    others |= {id(part): part for part in values[name]}
            self.values.append(values)
        if model.tied:
            others.pop(id(self.values[-1]["logits.weight"][0]))
            self.values[-1]["logits.weight"] = self.values[0]["tokens.weight"]
        rates: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01}
        muon = torch.optim.Muon(matrices, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw", **rates)
        self.optimizers = [muon, torch.optim.AdamW(list(others.values()), **rates)]

    def parameters(self) -> list[dict[str, Tensor]]:
        return [
            {name: torch.stack(parts) if name in PACKED else parts[0] for name, parts in values.items()}
            for values in self.values
        ]

    def step(self, tokens: Tensor) -> float:
        x = tokens[:, :-1]
        for unit, values in zip(self.model.units, self.parameters(), strict=True):
            x = torch_units.forward(unit.sublayer, values, x, torch_units.Shard())
        loss = F.cross_entropy(x.flatten(0, 1), tokens[:, 1:].flatten())
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())


@pytest.mark.parametrize("model", [GPT2, UNTIED, BERT, LLAMA], ids=["gpt2", "untied", "bert", "llama"])
def test_the_reference_is_torchs_own_muon_and_adamw(model: Model) -> None:
    one, other, tokens = Reference(model, 3, optimizer="muon"), ByTorch(model, 3), batch_tokens(model, 4, 3)
    adamw = Reference(model, 3)
    for _ in range(4):
        assert one.step(tokens) == pytest.approx(other.step(tokens), abs=1e-12)
        adamw.step(tokens)
    apart, unlike = 0.0, 0.0
    for mine, theirs, plain in zip(one.parameters, other.parameters(), adamw.parameters, strict=True):
        for name, value in mine.items():
            apart = max(apart, float((value - theirs[name]).detach().abs().max()))
            unlike = max(unlike, float((value - plain[name]).detach().abs().max()))
    assert apart < 1e-12 < 1e-4 < unlike


def test_runs_equal_one_process() -> None:
    """Copies, pipelines, sequence parallelism and master copies: losses and parameters after four steps, those of one process;
    with tensor parallelism each rank's part of a matrix is orthogonal by itself on the one process, too."""
    plans = [
        muon_plan(GPT2, "dp4", 4),
        muon_plan(GPT2, "tp4", 4),
        muon_plan(LLAMA, "dp2-tp2", 4),
        muon_plan(UNTIED, "dp2", 4, 4, (3,)),
        muon_plan(BERT, "tp2-ckpt", 4, 3, (2,)),
        muon_plan(LLAMA, "dp2-tp2-sp", 4),
        muon_plan(GPT2, "cp2-tp2", 4),
    ]
    for plan, report in zip(plans, run_plans(plans, steps=4, backend="fused"), strict=True):
        differences = (report.gradient_difference, report.parameter_difference, report.loss_difference)
        assert all(difference is not None and difference < 1e-12 for difference in differences), (plan.units[1], differences)
        assert report.losses == sorted(report.losses, reverse=True)


def random_muon_plan(rng: random.Random, world: int) -> Plan:
    """Any stages and layouts; what ranks share are states of ZeRO's stage 1."""
    model = rng.choice([GPT2, UNTIED, BERT, LLAMA]).with_fields(vocab_size=64)
    plan = random_plan(rng, world, model)
    strategies = []
    for strategy in plan.strategies():
        data: Paradigm = rng.choice(["dp", "sdp"])
        levels = Strategy.of((data, strategy.data_degree), ("tp", strategy.degree("tp"))).levels
        strategies.append(replace(strategy, levels=levels, zero=1 if dict(levels).get("sdp") else 3))
    return with_muon(plan, units=[unit.laid_out(strategy) for unit, strategy in zip(plan.units, strategies, strict=True)])


@pytest.mark.parametrize("count", some_and_all(30, 300, 120))
def test_programs_are_sound(count: int) -> None:
    for seed in range(count):
        rng = random.Random(seed)
        plan = random_muon_plan(rng, rng.choice([1, 2, 4]))
        assert check(compile_plan(with_precision(rng, plan) if rng.random() < 0.5 else plan)) == [], seed


@pytest.mark.parametrize("world", [1, 4, 8])
def test_tables_never_need_less_than_the_memory_analysis(world: int) -> None:
    """O_f, O_b and O_ms of the units of each stage, by Eq. 2, against the peak of each of its ranks."""
    rng = random.Random(world)
    for _ in range(30):
        plan = with_precision(rng, random_muon_plan(rng, world))
        profile, strategies, stages = profile_of(plan), plan.strategies(), len(plan.stages)
        once = stages == 1 and shares_table(strategies, range(len(plan.units)))
        programs, micro_batches = compile_plan(plan), plan.batch.micro_batches
        given: dict[str, Any] = {"precision": plan.precision, "optimizer": "muon"}
        for number, stage in enumerate(plan.stages):
            units = range(stage.first_unit, stage.last_unit + 1)
            columns = [
                unit_bytes(profile, True, profile.units[u].sublayer, strategies[u], samples_of(plan), once, **given)
                for u in units
            ]
            kept, work, states = (np.array(column) for column in zip(*columns, strict=True))
            in_flight = micro_batches if plan.schedule == "gpipe" else min(micro_batches, stages - number)
            predicted, _ = stage_peak(states, kept, work, in_flight)
            assert max(memory_walk(programs[rank]).peak_bytes for rank in stage.ranks) <= predicted, plan


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_rank_steps_and_holds_what_torch_does(precision: Precision) -> None:
    """For every unit of a tensor-parallel rank, after three steps on gradients of its own: the master copy bit for bit that of
    torch's optimizers, and as many bytes kept as the program says."""
    plan = with_precision(random.Random(0), muon_plan(LLAMA, "tp2", 2), precision)
    program, generator = compile_plan(plan)[1], torch.Generator().manual_seed(5)
    for position in program.units:
        state = make_unit(program, position, 0, torch.device("cpu"))
        oracle = {
            name: [part.clone().requires_grad_() for part in (views.unbind(0) if name in PACKED else [views])]
            for name, start, end, shape in state.layout
            for views in [state.master.detach()[start:end].view(shape)]
        }
        inner = position not in (0, program.units[-1])
        matrices = [part for name, parts in oracle.items() if inner and name in MATRICES for part in parts]
        others = [part for name, parts in oracle.items() if not inner or name not in MATRICES for part in parts]
        rates: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01}
        by_torch: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, fused=True, **rates)]
        if matrices:
            by_torch.append(torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **rates))
        for _ in range(3):
            state.gradient.copy_(torch.randn(state.gradient.shape, generator=generator))
            for name, start, end, shape in state.layout:
                gradient = state.gradient[start:end].view(shape).to(state.master.dtype)
                for part, entry in zip(oracle[name], gradient.unbind(0) if name in PACKED else [gradient], strict=True):
                    part.grad = entry.clone()
            for optimizer in by_torch:
                optimizer.step()
            state.step()
            for name, start, end, shape in state.layout:
                expected = torch.stack(oracle[name]) if name in PACKED else oracle[name][0]
                assert torch.equal(state.master.detach()[start:end].view(shape), expected.detach()), (position, name)
        assert isinstance(state.optimizer, MatricesWithAdamW)
        kept = sum(one_state.numel() * one_state.element_size() for one_state in state.optimizer.states if one_state.dim())
        assert kept == program.buffers[f"moments.{position}"]
        assert len(matrices) == (0 if not inner else 4 if position % 2 else 3)


def without_workspace(program: Program) -> Program:
    """As if the optimizer's steps needed nothing in addition to states and gradients."""
    issued = (i.changed(workspace_bytes=0) if i.op is Op.OPTIMIZER_STEP else i for i in program.instructions)
    return replace(program, instructions=tuple(issued))


@pytest.mark.long
def test_measured_memory_follows_the_memory_analysis() -> None:
    """Against torch's own allocations, on plans of a size at which tensors outweigh bookkeeping; matrices are large against
    tokens, so that the peak is that of a step of Muon."""
    model = GPT2.with_fields(n_layer=1, vocab_size=200, n_embd=512, n_inner=2048).in_dtype("float32")
    plans = [with_muon(plan_of(model, [entry] * len(model.units), 2, 2, 1)) for entry in ("dp2", "tp2", "dp2-ckpt", "tp2-ckpt")]
    plans += [with_precision(random.Random(0), plan, precision) for plan in plans[:2] for precision in PRECISIONS]
    programs = [compile_plan(plan)[0] for plan in plans]
    assert all(
        memory_walk(program).peak_bytes > 1.05 * memory_walk(without_workspace(program)).peak_bytes for program in programs
    )
    threads = max(1, (os.cpu_count() or 1) // 2)
    kernels = [kernel_bytes((2048 // plan.units[1].strategy.degree("tp"), 512), threads) for plan in plans]
    memory_follows_the_walk(run_plans(plans, steps=2, compare=False, measure_memory=True), kernels_bytes=kernels)


def test_what_cannot_be_is_refused_by_name() -> None:
    for strategy, stage in (("sdp2", 3), ("sdp2-zero2", 2)):
        with refused("optimizer", problem=("muon", f"units[0].states.zero {stage}"), fix=("adamw", "units[0].states.zero 1")):
            muon_plan(GPT2, strategy, 2)
    with refused("optimizer", problem=("muon", "dp2-sdp2-zero1", "units[0]"), fix=("adamw", "dp")):
        muon_plan(GPT2, "dp2-sdp2-zero1", 4)
    with refused("optimizer", problem="lion", fix=("adamw", "muon")):
        muon_plan(GPT2, "dp2", 2).changed(optimizer="lion")
    shared = muon_plan(GPT2, "sdp2-zero1", 2)
    assert check(compile_plan(shared)) == []
    with refused("units[0].states.zero", 1, (0, "--for trainplan", "adamw")):
        run_plans([shared])
    assert [str(refusal) for refusal in refusals(muon_plan(GPT2, "dp2", 2))] == [
        "optimizer is 'muon'; give 'adamw': torch's own pieces are stepped by it"
    ]
