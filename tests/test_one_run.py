"""One run has one step and one memory, whichever command says them: `import-run`, `validate`, `simulate`, `check`, `compare`,
`report` and `predict` of the run, `export` of it and `import-run` of what was exported, and `explain` of a plan for a runtime.

Runs are those of `tests.test_one_prediction`: files of Megatron-LM, torchtitan, DeepSpeed and Accelerate, with uneven stages,
context parallelism, recomputation of layers and modules, low precision, and states on the host.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.runtimes import RUNTIMES, StepAndPeaks, devices_of, predict, title
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.models.model import load_model

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.plans import plan_of as plan_at
from tests.helpers.rows_as_plans import plan_of_row, usual_cluster
from tests.helpers.sizes import first_and_others, some_and_all
from tests.test_one_prediction import BOTH, CASES, Case, accelerate, deepspeed, megatron, of, reported_by_validate, titan
from trainplan.planning.certify import with_evidence
from trainplan.validation.layouts import laid_run
from trainplan.validation.predict import predict_laid
from trainplan.validation.rows import Run

MEASURED = Path(os.environ.get("TRAINPLAN_DATA") or Path(__file__).parent.parent.parent / "shared/data") / "measured"
UNEVEN = "--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 3"
SMALL = [
    megatron("a100", 8, "llama3.2-1b", "none", BOTH, pp=2, gbs=32),
    of(
        megatron("h100", 8, "llama3.2-1b", "full", f"{BOTH} {UNEVEN}", pp=4, gbs=16),
        note=f"{BOTH} {UNEVEN} sequence parallel off".replace("--", ""),
    ),
    megatron("h100", 8, "llama3.2-1b", "selective", "--overlap-grad-reduce", cp=2, tp=2, exchange="heads", seq=8192, gbs=4),
    megatron("h200", 8, "llama3.2-1b", "block 2", BOTH, cp=4, seq=16384, gbs=4),
    titan("h100", 8, "llama3-8b", "every 2nd", mbs=2, compiled=True),
    deepspeed("h100", 8, "llama3.2-1b", 2, "none", gbs=32, mbs=2),
    deepspeed("h100", 8, "llama3.2-1b", 3, "full", offload="parameters", gbs=32),
    accelerate("rtx5090", 8, "llama3.2-1b", "full", gbs=16, seq=2048),
]  # one of each kind
RUNS = [*SMALL, *CASES[:32]]

WORDS = (  # fields of Megatron-Bridge's files, as a row's note may have them
    *("overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap", "fp8_param_gather", "grad_reduce_in_fp32"),
    *("cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
)
REQUEST: dict[str, Any] = {"model": "llama3.2-1b", "cluster": "h100:8", "batch": 32, "sequence": 2048, "dtype": "bf16"}
REQUEST |= {"gap": 0.2, "comparisons": False}


def imported(case: Case, folder: Path) -> Any:
    """The run of a case, read from its file."""
    path = folder / case.name
    path.write_text(case.text)
    return tp.import_run(path, cluster=case.cluster, search=False, **case.stated)


def said(answer: Any) -> tuple[int, int]:
    """The step in ns and the peak in bytes that an answer has."""
    return answer.step_ns, max(answer.peak_bytes)


@pytest.mark.parametrize("number", first_and_others([*range(len(RUNS))], len(SMALL), 4))
def test_every_command_says_one_step_and_one_memory_of_a_run(number: int, tmp_path: Path) -> None:
    case = RUNS[number]
    run = imported(case, tmp_path)
    step_ns, peak_bytes = stated = said(run)
    assert reported_by_validate(case) == stated
    predicted = predict(run.plan, load_cluster(case.cluster))
    assert isinstance(predicted, StepAndPeaks) and said(predicted) == stated
    assert predicted.peak_bytes == tuple(run.peak_bytes), "of every rank"
    assert predicted.runtime == title(run.plan.runs_by.name) and devices_of(run.plan) == load_cluster(case.cluster)
    saved = tmp_path / "plan.json"
    saved.write_text(run.plan.model_dump_json())
    assert said(tp.simulate(saved)) == stated
    assert said(tp.simulate(saved, cluster=case.cluster, for_=run.plan.runs_by.name)) == stated
    checked = tp.check(saved)
    assert checked.peak_bytes == peak_bytes and checked.software == run.plan.runs_by.software
    [row] = tp.compare_plans([saved])
    assert (row["step_ns"], row["peak_bytes"]) == (row["lanes_ns"], row["peak_bytes"]) == stated
    if number not in range(1, len(SMALL)):  # pages are long
        page = tp.report(saved)
        assert format_time(step_ns) in page and format_bytes(peak_bytes) in page and f"as {predicted.runtime} runs it" in page
    _check_export(run.plan, case, tmp_path)


def _check_export(plan: Plan, case: Case, folder: Path) -> None:
    """An export says what `import-run` says of its files, with the settings of the export, which may be others than those of
    the run that was imported."""
    assert plan.runs_by is not None
    runtime = plan.runs_by.name
    try:
        exported = tp.export(plan, runtime)
    except InputError as refused:
        assert "memory_bytes" in str(refused) or runtime == "torchtitan", refused  # which has no word for modules, chunks
        return
    for name, text in exported.files.items():
        (folder / name).write_text(text)
    again = tp.import_run(folder / "launch.sh", cluster=case.cluster, search=False)
    step_ns, peak_bytes = said(again)
    page = exported.files["README.md"]
    assert exported.settings["peak_bytes"] == peak_bytes
    assert f"predicted step, as exported | {format_time(step_ns)} (" in page
    assert f"memory, as exported | {format_bytes(peak_bytes)} of" in page


@pytest.mark.parametrize("runtime", ["megatron", "megatron-bridge", "deepspeed"])
def test_a_plan_for_a_runtime_has_its_numbers_in_every_command(runtime: str, tmp_path: Path) -> None:
    """Its file keeps the runtime."""
    found = with_evidence(tp.plan(**REQUEST, for_=runtime))
    plan = found.plan
    assert plan is not None and plan.predicted is not None and plan.runs_by is not None and plan.runs_by.name == runtime
    stated = plan.predicted.step_ns, plan.predicted.most_bytes
    predicted = predict(plan, load_cluster("h100:8"), runtime)
    assert isinstance(predicted, StepAndPeaks) and said(predicted) == stated == (found.step_ns, plan.predicted.most_bytes)
    saved = tmp_path / "plan.json"
    saved.write_text(plan.model_dump_json())
    assert said(tp.simulate(saved)) == stated and tp.check(saved).peak_bytes == stated[1]
    explained = tp.explain(saved, time_limit=1.0)
    assert (explained.step_ns, max(stage.peak_bytes for stage in explained.stages)) == stated
    exported = tp.export(saved, runtime)
    assert exported.settings["peak_bytes"] == stated[1] and format_time(stated[0]) in exported.files["README.md"]
    whose = f"as {RUNTIMES[runtime].title} runs it"
    for words in (("simulate", saved), ("explain", saved, "--time-limit", "1"), ("compare", saved)):
        printed = call(*words).stdout
        assert format_time(stated[0]) in printed and whose in printed, words


@pytest.mark.parametrize(
    ("strategy", "changed", "recipe"),
    [
        ("sdp4-tp2-zero1-sp", {}, ""),
        ("sdp8-zero1", {"mixed_precision__grad_reduce_in_fp32": False}, ""),
        ("dp8", {"model__cross_entropy_fusion_impl": "native", "ddp__overlap_grad_reduce": False}, ""),
        ("sdp2-tp4-zero1-sp", {"comm_overlap__tp_comm_overlap": True, "model__cross_entropy_loss_fusion": False}, ""),
        ("sdp8-zero1", {}, "fp8-current"),
        ("sdp8-zero1", {}, "fp8-blockwise"),
    ],
)
def test_a_file_of_megatron_bridge_a_row_that_says_the_same_and_an_export_have_one_prediction(
    strategy: str, changed: dict[str, Any], recipe: str, tmp_path: Path
) -> None:
    """What a file leaves out is of Megatron-Bridge's classes, and no row's words are needed beyond those of the file."""
    model = load_model("llama3.2-1b", 4096).in_dtype("bfloat16")
    plan = plan_at(model, [strategy] * len(model.units), 8, 32, 4).changed(precision={"master": "float32"}, memory_bytes=2**47)
    if recipe:
        inner = [unit.changed(precision=recipe) if 0 < x < len(plan.units) - 1 else unit for x, unit in enumerate(plan.units)]
        plan = plan.changed(units=inner)
    sections = yaml.safe_load(tp.export(plan, "megatron-bridge").files["bridge.yaml"])
    for field, value in changed.items():
        section, _, key = field.partition("__")
        sections.setdefault(section, {})[key] = value
    file = tmp_path / "bridge.yaml"
    file.write_text(yaml.safe_dump(sections))
    run = tp.import_run(file, cluster="h100:8", search=False, memory=2**47)
    stated = said(run)
    assert run.plan.runs_by.software == "Megatron-Bridge" and said(predict(run.plan, load_cluster("h100:8"))) == stated
    words = {key: value for section in sections.values() for key, value in section.items()}
    words = {"tp_comm_overlap": False, "overlap_param_gather": False, "fp8_param_gather": False} | words
    note = ", ".join(f"{name}: {words[name]}" for name in WORDS)
    row = Run(
        id="row", model=model.name, gpu="h100", gpus=8, seq=4096, gbs=32, mbs=words["micro_batch_size"], pp=1, cp=1,
        tp=words["tensor_model_parallel_size"], zero=int(words.get("use_distributed_optimizer", False)), recompute="none",
        framework="Megatron-Bridge", precision=f"bf16 {recipe.replace('-', ' ')} scaling", note=note, vocab=model.vocabulary,
    )  # fmt: skip
    laid = laid_run(row)
    laid = replace(laid, model=run.plan.planned_model())  # a row's vocabulary is padded, as the file's is by its own words
    found = predict_laid(laid, shipped_efficiencies())
    assert found.step is not None and found.memory is not None
    assert (round(found.step.step_ns), round(found.memory.peak_bytes)) == stated
    if not changed:
        exported = tp.export(run.plan, "megatron-bridge")
        assert exported.settings["peak_bytes"] == stated[1] and format_time(stated[0]) in exported.files["README.md"]


@pytest.mark.parametrize("number", [0, pytest.param(4, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)])
def test_what_import_run_calls_best_is_what_plan_for_the_runtime_finds(number: int, tmp_path: Path) -> None:
    """Where the run has no better settings than an export: one plan, one step, one bound, and the run's gap to it."""
    case = SMALL[number]
    (tmp_path / case.name).write_text(case.text)
    run = tp.import_run(tmp_path / case.name, cluster=case.cluster, gap=0.0001, time_limit=60, **case.stated)
    plan = run.plan
    asked = {"batch": plan.batch.global_samples, "for_": plan.runs_by.name, "gradients": plan.precision.gradients}
    asked |= {"schedule": "all"} if plan.depth > 1 else {}
    found = tp.plan(model=plan.planned_model(), cluster=case.cluster, gap=0.0001, comparisons=False, **asked)
    assert run.by_prediction and run.within.plan.content == found.plan.content
    assert run.within.step_ns == found.step_ns and run.best.answer.bound_ns == found.answer.bound_ns
    assert run.found.step_ns <= found.step_ns, "with the run's own settings, such as compiled blocks, it may take less"
    assert run.found.step_ns == found.step_ns or plan.runs_by.flags != found.plan.runs_by.flags
    assert run.bound_ns == found.answer.bound_ns and run.gap == 1 - run.bound_ns / run.step_ns


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_plan_for_deepspeed_has_the_numbers_of_a_row_that_says_no_more_than_its_layout(stage: int) -> None:
    """With the second bucket that reductions in parallel with backward passes take in stages 1 and 2."""
    model, ends = load_model("llama3-8b", 4096).in_dtype("bfloat16"), "sdp8" + f"-zero{stage}" * (stage < 3)
    plan = plan_at(model, [ends, *[f"{ends}-ckpt"] * (len(model.units) - 2), ends], 8, 32, 4)
    plan = plan.changed(precision={"master": "float32"})
    found = predict(plan, load_cluster("h100:8"), "deepspeed")
    row = {"id": "row", "model": "llama3-8b", "gpu": "h100", "gpus": 8, "seq": 4096, "gbs": 32, "mbs": 1, "zero": stage}
    row |= {"tp": 1, "pp": 1, "cp": 1, "recompute": "full", "precision": "bf16", "framework": "DeepSpeed", "date": "2026-01"}
    [reported] = tp.validate([row])
    assert isinstance(found, StepAndPeaks) and reported.step is not None and reported.memory is not None
    assert (round(reported.step.step_ns), round(reported.memory.peak_bytes)) == said(found)


@pytest.mark.parametrize("every", some_and_all(5, 1))
def test_a_row_and_a_plan_of_one_measured_run_have_one_prediction(every: int) -> None:
    """Of published runs, as they ran: by `validate`'s reading of the row, and by the plan of that layout for its runtime."""
    paths = [MEASURED / f"{name}.json" for name in ("runs", "mlperf", "dense_more", "memory")]
    if missing := [path.name for path in paths if not path.is_file()]:
        pytest.skip(f"needs the measured runs {missing[0]}: set TRAINPLAN_DATA")
    known = [row for path in paths for row in json.loads(path.read_text()) if row.get("gpus") and not row.get("experts")]
    compared = 0
    for row in known[::every]:
        fields = {name: value for name, value in row.items() if name in Run.model_fields}
        try:
            laid = laid_run(Run.model_validate(fields | {"note": row.get("facts")}))
            if laid.layout.on_host or laid.layout.frozen or laid.network_bytes_per_s:  # of devices in plans, not in words
                continue
            plan = plan_of_row(laid)
        except InputError:  # degrees that do not divide the devices
            continue
        row_says, plan_says = predict_laid(laid, shipped_efficiencies()), predict(plan, usual_cluster(laid))
        assert isinstance(plan_says, StepAndPeaks), row["id"]
        assert row_says.step is not None and row_says.memory is not None
        assert plan_says.step_ns == round(row_says.step.step_ns), row["id"]
        assert plan_says.most_bytes == round(row_says.memory.peak_bytes), row["id"]
        compared += 1
    assert compared >= 100 / every, compared


def test_numbers_of_a_plan_for_no_runtime_say_whose_overlap_they_have(tmp_path: Path) -> None:
    """Also of an export of it, which is predicted as the other runtime runs it."""
    plan = with_evidence(tp.plan(**REQUEST)).plan
    assert isinstance(plan, Plan) and plan.predicted is not None and plan.runs_by is None
    saved = tmp_path / "plan.json"
    saved.write_text(plan.model_dump_json())
    for words in (("simulate", saved), ("explain", saved, "--time-limit", "1"), ("compare", saved)):
        printed = " ".join(call(*words).stdout.split())
        assert format_time(plan.predicted.step_ns) in printed, words
        assert "of trainplan's programs, overlapped as in Megatron-Core" in printed, words
    predicted = predict(plan, load_cluster("h100:8"), "torchtitan")
    assert isinstance(predicted, StepAndPeaks) and predicted.runtime == "torchtitan"
    assert predict(plan, load_cluster("h100:8"), "torch") == "the plan is for trainplan's own runtime"
