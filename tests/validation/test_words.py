"""Words of rows of published tables, and rows that other tools have written."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.formulations.costs.overlapped import kernel_time
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.clusters.sheets import kind_named, likely_kind

from tests.helpers.refusals import Facts, assert_refusal_text, cautioned, refused
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.predict import Prediction, Predictions, predict_run, predict_runs
from trainplan.validation.rows import Run, load_runs

ROW: dict[str, Any] = {
    "id": "row",
    "source": "tests",
    "model": "llama3-70b",
    "gpu": "A100-80GB-SXM",
    "gpus": 64,
    "seq": 8192,
    "gbs": 64,
    "mbs": 1,
    "precision": "bf16",
    "framework": "torchtitan",
    "date": "2024-04",
}


def row(**fields: Any) -> Run:
    (made,) = load_runs([ROW | fields])
    return made


def laid(**fields: Any) -> LaidRun:
    return laid_run(row(**fields))


def predicted(**fields: Any) -> Prediction:
    return predict_run(row(**fields), shipped_efficiencies())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *(("H100 SXM", "h100"), ("NVIDIA H100 80GB HBM3", "h100"), ("DGX H100", "h100"), ("H100-SXM (InfiniBand)", "h100")),
        *(("NVIDIA H100 PCIe", "h100-pcie"), ("H100 NVL", "h100-nvl"), ("H100-96GB-HBM2e-500W", "h100-96gb")),
        *(("A100 80 GB", "a100"), ("A100-SXM4-40GB", "a100-40gb"), ("A100 PCIe", "a100-pcie"), ("A100 40GB", "a100-40gb")),
        *(("Tesla V100", "v100"), ("V100 SXM3 32GB", "v100-32gb"), ("GB200 NVL36", "gb200"), ("DGX B200", "b200")),
        *(
            ("AMD Instinct MI300X OAM", "mi300x"),
            ("GH200", "gh200"),
            ("H100SXM", "h100"),
            ("8xH100", "h100"),
            ("H100x8", "h100"),
        ),
        *(("MI300X", "mi300x"), ("RTX 4090", "rtx4090"), ("TITAN RTX", "titan-rtx"), ("H100-PCIe-80GB", "h100-pcie")),
        *(("RTX4090", "rtx4090"), ("rtx3090", "rtx3090"), ("8x RTX3090-24GB", "rtx3090"), ("4090", "rtx4090")),
        *(("NVIDIA RTX A6000", "a6000"), ("H20", "h20"), ("A10G", "a10g"), ("AMD MI250X (GCD)", "mi250x"), ("A40", "a40")),
    ],
)
def test_names_of_devices_in_tables(words: str, name: str) -> None:
    assert likely_kind(words)[0] == name


def test_a_command_takes_the_chip_s_own_sheet_and_asks_where_several_fit() -> None:
    assert [kind_named(text) for text in ("H100-SXM", "H100 80GB", "a100")] == ["h100", "h100", "a100"]
    with refused("cluster", problem=("A100 40GB", 2), fix=("a100-40gb", "a100-pcie-40gb")):
        kind_named("A100 40GB")
    with refused("gpu", problem="H40", fix=("h20", "a40", "`trainplan cluster kinds`")):
        likely_kind("H40")
    with refused("gpu", problem="RTX 6090", fix=("rtx5090", "rtx4090", "`trainplan cluster kinds`")):
        likely_kind("RTX 6090")


LISTED = "`trainplan cluster kinds`"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        *(("P100-PCIE-12GB", ("p100-pcie", "16 GiB")), ("H100 120GB", ("h100", "80 GiB")), ("A100 64GB", ("a100", "80 GiB"))),
        *(("GH200 144GB", ("gh200", "96 GiB")), ("H20 141GB", ("h20", "96 GiB")), ("RTX 4090 48GB", ("rtx4090", "24 GiB"))),
        *(("RTX 4090 Laptop", ("rtx4090", "24 GiB")), ("RTX 4090 D", ("rtx4090", "24 GiB"))),
        *(("A100 MIG 1g.10gb", ("a100", "80 GiB")), ("A100-SXM4-96GB", ("a100", "80 GiB"))),
        *(("RTX 2080", ("rtx2080ti", LISTED)), ("L40", ("l40s", LISTED)), ("V100S", ("v100", LISTED))),
        *(("MI300A", ("mi300x", LISTED)), ("Gaudi2", LISTED), ("TPU v5p", LISTED)),
    ],
)
def test_a_part_of_another_memory_or_another_name_is_not_taken_for_one_that_is_known(words: str, fix: Facts) -> None:
    with refused("gpu", problem=words, fix=fix):
        likely_kind(words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("B200-192GB", "b200"),
        ("RTX 2080 Ti", "rtx2080ti"),
        ("2080 Ti", "rtx2080ti"),
        ("H100 NVL 94GB", "h100-nvl"),
        ("V100 32G", "v100-32gb"),
    ],
)
def test_a_part_of_nearly_the_same_memory_is_taken(words: str, name: str) -> None:
    assert likely_kind(words)[0] == name


@pytest.mark.parametrize(
    ("words", "stage", "shard"),
    [
        *(("FSDP2", 3, 64), ("fsdp1", 3, 64), ("FSDP2(DTensor)", 3, 64), ("fsdp8", 3, 8), ("full_shard(ZeRO-3)", 3, 64)),
        *(("no", 3, 64), ("n/a", 3, 64), ("-", 3, 64), ("no (DDP)", 0, 64), ("NO_SHARD", 0, 64), ("ddp", 0, 64)),
        *(("ZeRO-1", 1, 64), ("zero2", 2, 64), ("deepspeed-zero-3", 3, 64), ("distributed optimizer", 1, 64)),
        *(("SHARD_GRAD_OP", 2, 64), ("hsdp8", 3, 8), ("HSDP 4x16", 3, 16), ("ddp4xfsdp16", 3, 16)),
        *(
            ("true", 3, 64),
            ("FSDP off", 3, 64),
            ("fsdp=false", 3, 64),
            ("hsdp(replicate 4, shard 16)", 3, 16),
            ("dp_replicate 4, dp_shard 16", 3, 16),
            ("hybrid", 3, 8),
            ("HSDP (FSDP2)", 3, 8),
            ("FSDP2 HSDP", 3, 8),
            ("_HYBRID_SHARD_ZERO2", 2, 8),
            ("hybrid ZeRO-3", 3, 8),
            ("FSDP2 HSDP 16", 3, 16),
        ),
    ],
)
def test_words_of_sharding(words: str, stage: int, shard: int) -> None:
    layout = laid(fsdp=words, framework="Megatron-Core" if stage == 1 else "torchtitan").layout  # FSDP has no stage 1
    assert (layout.zero, layout.shard) == (stage, shard)


@pytest.mark.parametrize(
    ("fields", "field", "problem", "fix"),
    [
        ({"framework": "DeepSpeed", "pp": 4, "zero": 2}, "zero", ("stage 2", "pp 4"), ("zero 0", "1", "pp 1")),
        ({"framework": "Megatron-DeepSpeed", "pp": 4, "zero": 2}, "zero", ("stage 2", "pp 4"), ("zero 0", "1", "pp 1")),
        ({"framework": "GPT-NeoX", "pp": 4, "fsdp": "ZeRO-3"}, "fsdp", ("stage 3", "pp 4"), ("zero 0", "1", "pp 1")),
        ({"framework": "torchtitan", "zero": 1}, "zero", ("stage 1", "PyTorch FSDP"), ("zero 2", "3", "0")),
        ({"framework": "PyTorch FSDP", "fsdp": "ZeRO-1"}, "fsdp", ("stage 1", "PyTorch FSDP"), ("zero 2", "3", "0")),
    ],
)
def test_what_no_framework_runs_is_not_predicted(fields: dict[str, Any], field: str, problem: Facts, fix: Facts) -> None:
    run = predicted(**fields)
    assert_refusal_text(run.cannot, field, problem=problem, fix=fix)
    assert run.fits is None


def test_a_stage_that_a_row_leaves_open_is_one_that_its_framework_has() -> None:
    """DeepSpeed's pipelines have none above 1, and FSDP none of 1; an open framework with ZeRO-1 is none of FSDP's."""
    for pp in (1, 4):
        made = laid(model="llama3-70b", framework="DeepSpeed", pp=pp, gpus=64, recompute="full")
        assert "zero" in made.assumed and (made.layout.zero < 2 if pp > 1 else made.layout.zero > 1)
    fsdp = laid(model="llama2-7b", framework=None, gpus=8, gbs=8, gpu="A100-80GB-SXM", recompute="full", seq=4096)
    assert fsdp.layout.framework.name == "PyTorch FSDP" and fsdp.layout.zero == 2, "copies do not fit"
    for fields in ({"zero": 1}, {"fsdp": "distributed optimizer"}):
        assert laid(framework=None, **fields).layout.framework.name == "Megatron-Core"
    assert laid(framework=None, zero=3, tp=2).layout.framework.name == "PyTorch FSDP", "Megatron-Core has no stage 3 by itself"
    pipelines = predicted(framework=None, zero=3, pp=4, note="DeepSpeed")
    assert_refusal_text(pipelines.cannot, "zero", problem=("stage 3", "pp 4"), fix=("zero 0", "pp 1"))


@pytest.mark.parametrize(
    ("words", "gpus", "layout", "open_"),
    [
        ("HSDP", 16, "dp16 zero3 hsdp 2x8", "8 ranks share states"),
        ("hybrid_shard", 32, "dp32 zero3 hsdp 4x8", "8 ranks share states"),
        ("HSDP", 12, "dp12 zero3 mbs1", "all 12 ranks share states"),
        ("HSDP 4x8", 32, "dp32 zero3 hsdp 4x8", None),
        ("full_shard", 32, "dp32 zero3 mbs1", None),
    ],
)
def test_hybrid_sharding_is_reported_and_its_sizes_where_they_are_taken(
    words: str, gpus: int, layout: str, open_: str | None
) -> None:
    runs = Predictions([predicted(gpus=gpus, gbs=gpus, mbs=1, fsdp=words, recompute="full", framework="torchtitan")])
    assert next(iter(runs.rows()))["layout"].startswith(layout)
    stated = [text for text in runs.notes() if "leaves open shard" in text]
    assert [str(open_) in text for text in stated] == [True] * (open_ is not None)


def test_ddp_shares_nothing() -> None:
    for fields in (
        *({"fsdp": words} for words in ("DDP (no FSDP)", "DDP without ZeRO", "no FSDP, DDP")),
        *({"framework": name, "fsdp": words} for name in ("PyTorch DDP", "torch DDP") for words in ("none", None)),
        {"framework": "nanoGPT", "note": "torch.compile; DDP"},
    ):
        run = laid(**fields)
        assert run.layout.zero == 0 and "zero" not in run.assumed, fields
    assert laid(framework="PyTorch DDP", fsdp="FSDP").layout.zero == 3
    assert laid(framework="Composer/PyTorch FSDP").layout.zero == 3


def test_a_stage_that_is_stated_stays_next_to_words_that_say_nothing() -> None:
    for words in ("no", "n/a", "0", "none"):
        assert laid(fsdp=words, zero=1, framework="Megatron-Core").layout.zero == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        *((word, RecomputePolicy()) for word in ("none", "no", "off", "n/a", "-", "false", "none(by recipe)", "w/o recompute")),
        *((word, RecomputePolicy()) for word in ("activation_checkpointing=False", "gradient checkpointing: off")),
        *(
            (word, RecomputePolicy(layers=1.0))
            for word in ("full", "yes", "gradient checkpointing", "activation checkpointing")
        ),
        *(
            (word, RecomputePolicy(layers=1.0))
            for word in ("all layers", "every layer", "full, uniform, 1 layer", "checkpointing")
        ),
        *((word, RecomputePolicy(operations=True)) for word in ("selective-op", "selective op", "SAC")),
        *((word, RecomputePolicy(layers=0.5)) for word in ("selective", "selective AC", "yes (selective)", "partial")),
        ("selective-layer(every 2nd)", RecomputePolicy(layers=0.5)),
        ("50%", RecomputePolicy(layers=0.5)),
        ("full(1 of 4 layers)", RecomputePolicy(layers=0.25)),
        *((word, RecomputePolicy(first=10)) for word in ("block 10", "block(10)", "first 10", "first-10", "full(10 layers)")),
        ("selective(core_attn)+sequence-parallel", RecomputePolicy(attention=True)),
        *((word, RecomputePolicy(norms=True)) for word in ("selective(layernorm)", "norms", "selective(ln)")),
        *((word, RecomputePolicy(activation=True)) for word in ("act", "mlp act", "mlp_act", "swiglu", "gelu", "act_fn")),
        *((word, RecomputePolicy(network=True)) for word in ("mlp", "selective(mlp)", "ffn", "feed-forward", "full(mlp)")),
        *((word, RecomputePolicy(loss=True)) for word in ("loss", "selective(loss)")),
        ("mlp, layernorm", RecomputePolicy(network=True, norms=True)),
        ("mlp, layernorm; 5 layers", RecomputePolicy(network=True, norms=True)),
        ("core_attn, mlp_act", RecomputePolicy(attention=True, activation=True)),
        ("save_qkvo", RecomputePolicy(attention=True, norms=True, network=True)),
        *(
            (word, RecomputePolicy(layers=1.0))
            for word in ("Yes (non-reentrant)", "AC on", "grad ckpt: true", "ckpt", "gc", "unsloth")
        ),
        *(
            (word, RecomputePolicy(layers=1.0))
            for word in ("layer-wise", "True, reentrant", "act ckpt", "GC enabled", "use_gradient_ckpt=1")
        ),
        *(
            (word, RecomputePolicy(layers=1.0))
            for word in ("activation checkpointing + cpu offload", "unsloth offload", "32/32")
        ),
        *((word, RecomputePolicy(layers=0.5)) for word in ("every other layer", "alternate layers", "1/2", "selective AC 1/2")),
        *(
            (word, RecomputePolicy(layers=0.5))
            for word in ("half of the layers", "16 out of 32", "memory budget 0.5", "every second")
        ),
        *(("12/32", RecomputePolicy(layers=12 / 32)), ("1/3 of layers", RecomputePolicy(layers=1 / 3))),
        *((word, RecomputePolicy()) for word in ("offloaded activations", "activation offload", "act_cpu_offload")),
        ("on, attention only", RecomputePolicy(attention=True)),
    ],
)
def test_words_of_recomputation(words: str, meant: RecomputePolicy) -> None:
    assert laid(recompute=words).layout.recompute == meant


def test_modules_differ_in_time_and_memory() -> None:
    """For Llama-3 8B, norms and the activation take little time; the feed-forward network has two thirds of a layer's products,
    and most of what it keeps."""
    row: dict[str, Any] = {"model": "llama3-8b", "gpu": "H100-80GB-SXM", "gpus": 64, "framework": "Megatron-Bridge", "zero": 1}
    words = ("none", "layernorm", "act", "mlp", "loss", "full")
    made = {one_word: predicted(**row, recompute=one_word) for one_word in words}
    step, peak = ({word: getattr(value, field) for word, value in made.items()} for field in ("step_s", "peak_gib"))
    assert step["none"] < step["layernorm"] < step["act"] < 1.03 * step["none"]
    assert 1.1 * step["none"] < step["mlp"] < 1.2 * step["none"] < 1.25 * step["none"] < step["full"]
    assert 1.005 * step["none"] < step["loss"] < 1.05 * step["none"] and peak["loss"] == peak["none"]
    tokens = 8192 * 2 * 32 / 2**30
    assert peak["none"] - peak["layernorm"] == pytest.approx(2 * 4096 * tokens, rel=0.01)
    assert peak["none"] - peak["act"] == pytest.approx(14336 * tokens, rel=0.01)
    assert peak["none"] - peak["mlp"] == pytest.approx(3 * 14336 * tokens * 31 / 32, rel=0.05)


@pytest.mark.parametrize(
    ("field", "words", "fix"),
    [
        *(("recompute", words, ("none", "full", "selective", "`block 10`")) for words in ("weird", "medium")),
        ("fsdp", "colossal", ("DDP", "ZeRO-1", "ZeRO-2", "full_shard", "FSDP2", "HSDP")),
        *(("precision", words, ("bf16", "fp16", "fp32", "tf32", "fp8")) for words in ("int8", "fp64", "posit", "fp6")),
        ("precision", "bf16/fp16", ()),
    ],
)
def test_rows_of_words_that_nobody_knows_are_not_predicted(field: str, words: str, fix: Facts) -> None:
    """They would be of another run."""
    with refused(field, problem=words, fix=fix):
        laid(**{field: words})


def test_selective_recomputation_is_that_of_the_framework() -> None:
    assert laid(recompute="selective", framework="Megatron-Core").layout.recompute == RecomputePolicy(attention=True)


def test_precisions() -> None:
    assert predicted(precision="bfloat16").peak_gib == predicted(precision="bf16").peak_gib
    for words in ("amp", "mixed precision", "half", ""):
        layout = laid(precision=words, gpu="V100-32GB", gpus=64, model="llama3-8b").layout
        assert (layout.base, layout.precision) == ("float16", "float16")
    wide = [predicted(precision=words, model="llama3-8b").step_s or 0.0 for words in ("bf16", "tf32", "fp32")]
    assert 1.5 * wide[0] < wide[1] < 3 * wide[0] < wide[2], "attention and head run in tf32, too"


def test_precisions_that_are_not_the_device_s_are_named() -> None:
    for words, base in (("O2", "float16"), ("16-mixed", "float16"), ("32-true", "float32"), ("e4m3", "bfloat16")):
        run = laid(precision=words, gpu="H100")
        assert run.layout.base == base and "precision" not in run.assumed
    assert laid(precision="e4m3", gpu="H100").layout.recipe is not None
    for gpu in ("V100-32GB", "T4"):
        old = laid(gpu=gpu, precision="bf16", model="llama3.2-1b")
        assert (old.layout.base, old.layout.precision) == ("float16", "float16") and old.model.sublayers
        assert "has no rate for bfloat16" in old.assumed["precision"]
    assert laid(seq=None, model="llama3.1-8b").assumed["seq"].startswith("131072, the most")


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        *((word, "fp8") for word in ("FP8-delayed", "fp8 (delayed scaling)", "FP8-DS")),
        *(
            (word, "fp8-current")
            for word in ("FP8-CS", "fp8 current scaling", "bf16+fp8-current", "float8 tensorwise", "fp8 rowwise")
        ),
        *(
            (word, "fp8-blockwise")
            for word in ("fp8 blockwise", "FP8 block-wise", "fp8-subchannel", "FP8 block scaling", "FP8-SC")
        ),
        *((word, "mxfp8") for word in ("mxfp8", "MXFP8", "FP8-MX", "mx-fp8")),
        *((word, "nvfp4") for word in ("nvfp4", "NVFP4")),
    ],
)
def test_words_of_recipes(words: str, recipe: str) -> None:
    """Each by itself, in the precision or, where that says FP8 alone, in the note."""
    run = laid(gpu="B200", gpus=64, model="llama3-8b", precision=words)
    assert run.layout.recipe is RECIPES[recipe] and "recipe" not in run.assumed
    assert (run.layout.base, run.layout.rate) == ("bfloat16", RECIPES[recipe].precision)
    if "4" not in words:
        noted = laid(gpu="B200", gpus=64, model="llama3-8b", precision="FP8", note=f"container 25.09; {words}")
        assert noted.layout.recipe is RECIPES[recipe] and "recipe" not in noted.assumed


def test_a_recipe_that_no_word_says_is_named() -> None:
    for words, recipe in (("FP8", "fp8"), ("bf16, float8", "fp8"), ("fp4", "nvfp4"), ("MXFP4", "nvfp4")):
        run = laid(gpu="B200", gpus=64, model="llama3-8b", precision=words, framework="Megatron-Core")
        assert run.layout.recipe is RECIPES[recipe]
        assert run.assumed["recipe"] == f"{recipe}: {RECIPES[recipe].about}"
    torchtitan = laid(gpu="H100", gpus=64, model="llama3-8b", precision="FP8", framework="torchtitan")
    assert torchtitan.layout.recipe is RECIPES["fp8-current"] and "recipe" in torchtitan.assumed
    assert laid(precision="bf16", note="fp8 current scaling in another run").layout.recipe is None
    foreign = laid(gpu="H100", gpus=64, model="llama3-8b", precision="mxfp8")
    assert foreign.assumed["recipe"] == "mxfp8, which is not known to be one of H100-SXM5 80 GB"


def test_recipes_differ_by_what_casts_read_and_weights_keep() -> None:
    """Current scaling reads operands twice; products in blocks are slower, and their operands are written twice; FP4 is faster,
    and weights next to their copies take more."""
    about: dict[str, Any] = {"gpu": "B200", "gpus": 64, "model": "llama3-8b", "tp": 2, "fsdp": "no", "zero": 1}
    run = {name: predicted(**about, framework="Megatron-Core", precision=name) for name in RECIPES}
    step, peak = ({name: getattr(value, field) for name, value in run.items()} for field in ("step_s", "peak_gib"))
    assert step["nvfp4"] < step["fp8"] < step["fp8-current"] < step["mxfp8"] < 1.1 * step["fp8"]
    assert step["fp8-blockwise"] == step["mxfp8"], "as it is emulated"
    assert peak["fp8"] == peak["fp8-current"] < peak["mxfp8"] < peak["fp8-blockwise"]
    weights = (8.03e9 - 2 * 128256 * 4096) / 2 / 2**30  # of a rank's layers
    assert peak["fp8-blockwise"] - peak["fp8"] == pytest.approx(2 * weights, rel=0.1)


def test_negated_words() -> None:
    split = {"tp": 8, "framework": "Megatron-Core"}
    for note in ("no sequence parallel", "sequence_parallel=False", "without sequence-parallel"):
        assert not laid(**split, note=note).layout.sequence_parallel
    for note in ("sequence_parallel", "with sequence parallelism", None):
        assert laid(**split, note=note).layout.sequence_parallel
    overlap = [laid(**split, note=note).layout.framework.tensor_overlap for note in ("tp-comm-overlap", "no tp_comm_overlap")]
    assert overlap[0] > 0.5 and overlap[1] == 0.0


def test_frameworks() -> None:
    names = {
        "Megatron-Bridge": "Megatron-Bridge",
        "NeMo 2": "NeMo",
        "Nanotron": "nanotron",
        "Primus": "Megatron-Core",
        "MLPerf": "Megatron-Core",
    }
    for framework, name in names.items():
        assert laid(tp=8, pp=2, framework=framework).layout.framework.name == name
    assert laid(framework="Hugging Face Accelerate").layout.framework.name == "PyTorch FSDP"
    for framework in ("GPT-NeoX", "DeepSpeed", "fairscale FSDP"):
        fused = [laid(framework=framework, date=date).layout.framework.fused_attention for date in ("2022-03", "2024-01")]
        assert fused == [False, True]


def test_flags_of_notes_and_their_negations() -> None:
    for name, field in (("overlap-grad-reduce", "overlaps_gradients"), ("overlap_param_gather", "overlaps_parameters")):
        stated = [
            getattr(laid(framework="Megatron-Core", note=note).layout.framework, field) for note in (f"--{name}", f"no {name}")
        ]
        assert stated == [True, False]
    compiled = [laid(note=note).layout.framework.name for note in ("compile", "no compile", "compile=false", "torch.compile")]
    titan = "PyTorch FSDP, torchtitan"
    assert compiled == [f"{titan} compiled", titan, titan, f"{titan} compiled"]
    assert laid(framework="PyTorch FSDP", note="torch.compile").layout.framework.name == "PyTorch FSDP, compiled"
    fused = [
        laid(framework="DeepSpeed", date=date, note=note).layout.framework.fused_attention
        for date, note in (("22.03", None), ("24.07", None), ("2022-03", "flash attention"), ("2022-03", "no flash attention"))
    ]
    assert fused == [False, True, True, False]


@pytest.mark.parametrize(
    ("note", "framework", "meant"),
    [
        *((note, "Megatron-Core", "heads") for note in ("ulysses", "cp-comm-type a2a", "CP via all-to-all", "a2a")),
        *((note, "Megatron-Core", "keys") for note in (None, "ring attention", "cp_comm_type p2p", "no ulysses", "a2a off")),
        *((note, "DeepSpeed", meant) for note, meant in ((None, "heads"), ("ring attention", "keys"), ("no a2a", "keys"))),
        (None, "DeepSpeed-Ulysses", "heads"),
        ("cp-comm-type all_gather", "Megatron-Core", "keys"),
    ],
)
def test_words_of_context_parallelism(note: str | None, framework: str, meant: str) -> None:
    run = laid(cp=4, framework=framework, note=note)
    assert run.layout.exchange == meant and run.layout.exchanges_heads == (meant == "heads")
    assert laid(cp=1, framework=framework, note=note).layout.exchange == "keys"
    assert ("context parallelism" in run.assumed) == (
        (note is None and "Ulysses" not in framework) or "all_gather" in (note or "")
    )


def test_both_kinds_and_too_few_heads_are_not_predicted() -> None:
    for note in ("cp-comm-type a2a+p2p", "USP"):
        assert_refusal_text(predicted(cp=4, note=note).cannot, "note", problem="both kinds", fix=("a2a", "p2p"))
    assert predicted(cp=64, note="a2a").cannot == ""
    assert predicted(cp=16, tp=4, gpus=64, note="a2a").cannot == ""  # of 2 heads of keys on a rank 8 copies each
    refusal = predicted(cp=32, tp=4, gpus=128, note="a2a").cannot
    assert_refusal_text(refusal, "cp", problem=(32, "16 heads", "4 tensor-parallel"), fix="ring")
    left_open = laid(cp=32, tp=4, gpus=128, framework="DeepSpeed")
    assert left_open.layout.exchange == "keys" and "32 does not divide" in left_open.assumed["context parallelism"]
    times = [predicted(cp=8, note=note).step_s for note in ("a2a", "p2p")]
    assert None not in times and times[0] != times[1]


@pytest.mark.parametrize(
    ("note", "optimizer", "zero"),
    [
        *(("Muon", "muon", 0), ("optimizer: muon", "muon", 0), ("trained with MuonClip, bf16 gradients", "muon", 0)),
        *(("--optimizer dist_muon", "muon", 1), ("no muon", "adamw", 0), ("without Muon", "adamw", 0), ("muons", "adamw", 0)),
    ],
)
def test_words_of_the_optimizer(note: str, optimizer: str, zero: int) -> None:
    layout = laid(framework="Megatron-Core", tp=8, pp=2, note=note, oom=True).layout
    assert (layout.optimizer, layout.zero) == (optimizer, zero)


def test_muon_moves_the_step_and_the_memory_of_a_row() -> None:
    """For Llama-3-70B on 64 devices: what a step of Muon multiplies, and a momentum in place of two moments."""
    shape: dict[str, Any] = {"framework": "Megatron-Core", "tp": 8, "pp": 4}
    flags = "overlap-grad-reduce, overlap-param-gather"
    muon, adamw = predicted(**shape, note=f"muon, {flags}"), predicted(**shape, note=flags)
    assert muon.step is not None and adamw.step is not None and muon.peak_gib is not None and adamw.peak_gib is not None
    rows = {1024: 8192 // 8, 8192: 8192 // 8, 28672: 28672 // 8}
    matrices = [(rows[8192], 8192), (8192, rows[8192])] + [(1024 // 8, 8192)] * 2 + [(rows[28672], 8192)] * 3
    flops = sum(4 * min(matrice) ** 2 * max(matrice) + 2 * min(matrice) ** 3 for matrice in matrices)
    least = 20 * 5 * flops / 312e12 * 1e9  # of the layers of a stage, at an A100's peak
    moment = 20 * 8 * sum(m * n for m, n in matrices) / 2.039e12 * 1e9  # not read and written
    assert muon.step.optimizer_ns - adamw.step.optimizer_ns > least - 1.25 * moment
    assert muon.step.optimizer_ns < adamw.step.optimizer_ns + 6 * least
    kept = 4 * 20 * sum(m * n for m, n in matrices)
    assert adamw.peak_gib - muon.peak_gib == pytest.approx(kept / 2**30, rel=1e-6)
    assert (muon.step.reduce_ns, muon.step.passes_ns) == (adamw.step.reduce_ns, adamw.step.passes_ns)
    assert predicted(**shape, note="muon").step.reduce_ns > muon.step.reduce_ns  # type: ignore[union-attr]
    assert "muon" in laid(**shape, note="muon").assumed and "muon" not in laid(**shape).assumed
    shared = predicted(framework="torchtitan", note="Muon")
    assert_refusal_text(shared.cannot, "note", problem=("Muon", "stage 3"), fix=("zero 0", "1"))


def test_asynchronous_tensor_parallelism_overlaps() -> None:
    for note in ("compile; async TP", "AsyncTP", "tp comm overlap", "asynchronous TP"):
        assert laid(tp=8, note=note).layout.framework.tensor_overlap > 0.5
    assert laid(tp=8, note="no async TP").layout.framework.tensor_overlap == 0.0
    assert (predicted(tp=8, note="async TP").step_s or 9e9) < 0.95 * (predicted(tp=8).step_s or 0)


def test_schedules_differ_in_bubbles_or_memory() -> None:
    row: dict[str, Any] = {"pp": 8, "tp": 8, "gbs": 32, "recompute": "none", "zero": 1, "model": "llama3-70b", "gpu": "H100"}
    row["framework"] = "Megatron-Core"
    words = ("1F1B", "GPipe", "Interleaved 1F1B", "ZB-H1", "ZBVZeroBubble", "DualPipe")
    made = {one_word: predicted(**row, note=one_word) for one_word in words}
    step, peak = ({word: getattr(value, field) for word, value in made.items()} for field in ("step_s", "peak_gib"))
    assert step["1F1B"] == step["GPipe"] > step["Interleaved 1F1B"] > step["ZB-H1"] > step["ZBVZeroBubble"] == step["DualPipe"]
    assert peak["GPipe"] > 1.5 * peak["1F1B"] == 1.5 * peak["ZB-H1"]
    assert all("schedule" in laid(**row, note=entry).assumed for entry in ("ZB-H1", "DualPipe", "V-Half"))
    assert laid(**row, note="Interleaved 1F1B").assumed["vpp"] == "2" and laid(**row, note="1F1B").assumed["vpp"] == "1"
    for note in ("non-interleaved", "no zero bubble", "rotary-interleaved"):
        assert predicted(**row, note=note).step_s == step["1F1B"]


def test_words_of_fused_attention() -> None:
    old: dict[str, Any] = {"framework": "Megatron-LM", "date": "2022-11"}
    for note in ("FlashAttention", "FlashAttention-2", "flash attention", "flash-attn", "use_flash_attn: FA2"):
        assert laid(**old, note=note).layout.framework.fused_attention
    for note in ("no flash attention", "unfused", "without FlashAttention", "unfused attention", "eager attention"):
        assert not laid(framework="DeepSpeed", note=note).layout.framework.fused_attention
    assert not laid(**old).layout.framework.fused_attention and laid(framework="DeepSpeed").layout.framework.fused_attention


@pytest.mark.parametrize(
    ("note", "gigabits"),
    [
        *(("100 Gbps Ethernet", 100), ("25Gbps network", 25), ("10GbE", 10), ("one 100Gb/s NIC per node", 100)),
        *(("8x200Gb/s", 1600), ("4 x 100 Gb", 400), ("400 Gbps EFA", 400), ("25 Gbps per node", 25), ("3.2 Tbps", 3200)),
        *(("a single 200 Gbps InfiniBand HCA", 200), ("100G RoCE network", None), ("HDR InfiniBand 8 HCAs", None)),
    ],
)
def test_words_of_networks(note: str, gigabits: int | None) -> None:
    share = None if gigabits is None else gigabits * 1e9 / 8 / 8
    assert laid(note=note).network_bytes_per_s == (pytest.approx(share) if share else None)


def test_words_of_the_optimizer_s_states() -> None:
    """Bytes a device of 8 billion parameters on 8 devices."""
    row: dict[str, Any] = {"model": "llama3-8b", "recompute": "full", "gpus": 8, "framework": "PyTorch FSDP"}
    usual = predicted(**row)
    for fields, fewer in (
        *(
            ({"note": note}, 6)
            for note in ("8-bit Adam", "adamw_8bit", "paged_adamw_8bit", "AdamW (8-bit)", "bnb 8bit optimizer")
        ),
        *(
            ({"note": note}, 4)
            for note in ("bf16 optimizer states", "SGD", "bfloat16 moments", "lion_32bit", "RMSprop", "Adagrad")
        ),
        *(({"note": note}, 7) for note in ("lion_8bit", "paged_lion_8bit", "8-bit Lion")),
        *(({"note": note}, 8) for note in ("Adafactor", "SGD without momentum")),
        *((fields, 4 + 4) for fields in ({"note": "pure bf16"}, {"precision": "bf16-true"}, {"note": "no master weights"})),
    ):
        made = predicted(**row | fields)
        assert usual.peak_gib is not None and made.peak_gib is not None and made.step is not None and usual.step is not None
        assert usual.peak_gib - made.peak_gib == pytest.approx(fewer * 8.03e9 / 8 / 2**30, rel=0.15), fields
        assert made.step.optimizer_ns < usual.step.optimizer_ns, fields
    assert predicted(**row, note="no 8-bit Adam").peak_gib == usual.peak_gib


def test_adapters_may_be_named_in_a_note_or_with_the_model() -> None:
    for fields in ({"note": "LoRA, r=16"}, {"model": "llama3-70b-lora"}, {"task": "sft-lora"}):
        assert laid(**fields).layout.frozen
    assert not laid(note="full finetune, no LoRA").layout.frozen and not laid(note="explorative").layout.frozen


@pytest.mark.parametrize(
    ("note", "problem"),
    [
        *((note, "few bits") for note in ("QLoRA r=64", "qlora", "load_in_4bit", "4-bit base", "bnb_4bit_quant")),
        *((note, "parts") for note in ("DoRA", "freeze embeddings", "prefix tuning", "BitFit", "frozen backbone")),
        *((note, ("optimizer", "states")) for note in ("GaLore", "galore_adamw_8bit", "LOMO", "adamw_anyprecision", "SOAP")),
    ],
)
def test_what_is_trained_otherwise_is_not_predicted(note: str, problem: Facts) -> None:
    """As a whole by AdamW it would take several times as much, or less."""
    assert_refusal_text(predicted(model="llama3-8b", gpus=8, note=note).cannot, "note", problem=problem, fix="row")
    assert not predicted(model="llama3-8b", gpus=8, note=f"no {note}").cannot


def test_adapters_take_time_in_addition_to_frozen_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """For Llama-2 70B: a twentieth of the kernels' time more in bfloat16, more in 8 bits, where products take half as long."""
    row: dict[str, Any] = {"model": "llama2-70b", "gpus": 8, "gpu": "H100", "tp": 4, "framework": "NeMo", "recompute": "none"}
    row |= {"seq": 4096, "task": "LoRA", "oom": True}

    def computed_ns(precision: str) -> float:
        step = predicted(**row, precision=precision).step
        assert step is not None
        return step.computing_ns

    by_precision = {precision: computed_ns(precision) for precision in ("bf16", "FP8")}
    monkeypatch.setattr(kernel_time, "ADAPTER_READS", 0)
    monkeypatch.setattr(kernel_time, "ADAPTER_WRITES", 0)
    more = {precision: time_ns / computed_ns(precision) for precision, time_ns in by_precision.items()}
    assert 1.04 < more["bf16"] < more["FP8"] < 1.12


def test_degrees_that_follow_from_the_others() -> None:
    layout = laid(dp=4, pp=4, framework="NeMo").layout
    assert (layout.tp, layout.pp, layout.dp) == (4, 4, 4)
    layout = laid(dp=2, framework="NeMo").layout
    assert (layout.tp, layout.pp, layout.dp) == (8, 4, 2)
    both = laid(fsdp="hsdp8", dp=8, tp=1, pp=1, cp=1)
    assert (both.layout.dp, both.layout.shard) == (64, 8) and "dp" in both.assumed
    with refused("dp", problem=(3, "64 devices", "tp 4", "pp 4", "cp 1"), fix=4):
        laid(dp=3, tp=4, pp=4, cp=1)


@pytest.mark.parametrize(
    "fields",
    [
        *({"tp": 1.0}, {"zero": 3.0}, {"experts": 0}, {"vpp": 0}, {"date": 2024}, {"fsdp": False}, {"recompute": False}),
        *({"source": None}, {"step_s": float("nan")}, {"note": float("nan")}, {"kv_heads": 8.0}, {"ep": 0}),
    ],
)
def test_rows_as_other_tools_write_them(fields: dict[str, Any]) -> None:
    assert predicted(**fields).cannot == "" and predicted(**fields).step_s


def test_one_row_that_cannot_be_read_does_not_keep_others_from_being_read() -> None:
    wrong = [{"gpus": None}, {"gpu": None}, {"seq": -3}, {"tp": "many"}]
    rows = [ROW | {"id": f"r{index}"} | fields for index, fields in enumerate([{}, *wrong, {}])]
    made = predict_runs(load_runs(rows))
    assert [bool(entry.cannot) for entry in made] == [False, True, True, True, True, False]
    assert [entry.to_dict()["id"] for entry in made] == [f"r{index}" for index in range(6)]
    assert_refusal_text(made[1].cannot, "gpus", fix=8)
    assert_refusal_text(made[2].cannot, "gpu", fix="h100")
    assert_refusal_text(made[3].cannot, "seq", problem=-3, fix=1)
    assert_refusal_text(made[4].cannot, "tp", problem="many", fix=1000)


def test_ids_that_stand_twice_are_warned_of() -> None:
    with cautioned("[1].id", problem=("row", "[0]")):
        assert len(load_runs([ROW, ROW])) == 2


@pytest.mark.parametrize(
    ("note", "gradient_bytes"),
    [
        *(("bf16 gradients", 2), ("grad-reduce-in-bf16", 2), ("no grad-reduce-in-bf16", 4), ("gradient dtype bf16", 2)),
        *(("fp32 gradients", 4), ("grad_reduce_in_fp32: false", 2), ("grad_reduce_in_fp32=True", 4)),
        *(("--accumulate-allreduce-grads-in-fp32", 4), ("grad_reduce_dtype: float32", 4), ("gradient type: fp32", 4)),
    ],
)
def test_notes_say_what_gradients_are_kept_in(note: str, gradient_bytes: int) -> None:
    for framework in ("Megatron-LM", "NeMo"):
        assert laid(framework=framework, note=note).layout.framework.gradient_bytes == gradient_bytes


def test_a_note_may_say_dropout_and_the_layers_of_a_first_and_last_stage() -> None:
    eager = "attention-backend unfused"
    kept, dropped = (predicted(framework="Megatron-Core", note=f"{eager}{more}") for more in ("", "; attention-dropout 0.1"))
    assert dropped.peak_gib is not None and kept.peak_gib is not None and dropped.peak_gib > 1.2 * kept.peak_gib
    note = "decoder-first-pipeline-num-layers 5; decoder_last_pipeline_num_layers: 7"
    assert laid(pp=4, note=note, framework="Megatron-Core").layout.stage_layers == (5, 34, 34, 7)
    with refused("note", problem=("69 layers", "2 stages"), fix="layers"):
        laid(pp=4, note=note.replace("5", "4"), framework="Megatron-Core")
