"""Memory that trainers hold alongside states and activations: each term as torch and transformers measure it, or by its
source."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_memory import loss_bytes
from trainplan.formulations.costs.overlapped.frameworks import DEEPSPEED, FSDP
from trainplan.formulations.costs.overlapped.layout import Framework, Held, RecomputePolicy, RunLayout
from trainplan.formulations.costs.overlapped.unit_memory import kept_bytes, score_gradient_bytes
from trainplan.profiling.models.model import Model, model_from_config

from tests.validation.test_words import laid, predicted
from trainplan.validation.fitting import tight_words
from trainplan.validation.predict import Predictions

GIB = 2**30
DENSE: dict[str, Any] = {"model": "llama2-7b", "gpus": 8, "mbs": 1, "gbs": 16, "seq": 1024, "recompute": "full"}
ZERO_3 = DENSE | {"gpu": "H100-80GB-SXM", "framework": "DeepSpeed", "fsdp": "ZeRO-3", "precision": "bf16"}
COUNT = 6_738_415_616  # parameters of Llama-2-7B

torch = pytest.importorskip("torch")


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that tensors which some work makes hold at once, in bytes."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Storages(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.live: dict[int, int] = {}
            self.now = self.most = 0

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {leave.untyped_storage()._cdata for leave in tree_leaves((args, kwargs)) if isinstance(leave, torch.Tensor)}
            made = operator(*args, **(kwargs or {}))
            for leave in tree_leaves(made):
                if isinstance(leave, torch.Tensor) and (index := leave.untyped_storage()._cdata) not in given | set(self.live):
                    self.live[index] = leave.untyped_storage().nbytes()
                    self.now += self.live[index]
                    self.most = max(self.most, self.now)
                    weakref.finalize(leave.untyped_storage(), self.gone, index)
            return made

        def gone(self, index: int) -> None:
            self.now -= self.live.pop(index, 0)

    with Storages() as storages:
        work()
    return storages.most


@pytest.mark.parametrize(("dtype", "held"), [("bfloat16", 2), ("float32", 4)])
def test_the_loss_of_transformers_holds_twelve_bytes_a_logit_and_the_logits_while_they_are_an_output(
    dtype: str, held: int
) -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    tokens, vocabulary = 64, 2048
    labels = torch.randint(vocabulary, (1, tokens))

    def backward(outputs: bool, capped: bool = False) -> None:
        logits = torch.randn(1, tokens, vocabulary, dtype=getattr(torch, dtype)).requires_grad_() * 1
        if capped:
            logits = torch.tanh(logits / 30) * 30
        loss = ForCausalLMLoss(logits, labels, vocabulary)
        if not outputs:
            del logits
        loss.backward()

    numbers = tokens * vocabulary
    for outputs in (False, True):
        # the leaf, which stands for the hidden states
        measured = peak_bytes(lambda outputs=outputs: backward(outputs)) - held * numbers  # type: ignore[misc]
        assert measured == pytest.approx((FSDP.logit_bytes + held * outputs) * numbers, rel=0.01)
    gemma = laid(**ZERO_3 | {"model": "gemma2-9b", "seq": tokens, "precision": "bf16" if held == 2 else "fp32"})
    head = gemma.model.units[-1]
    counted = loss_bytes(gemma.model, head, gemma.layout) * vocabulary / gemma.model.vocabulary  # type: ignore[operator]
    assert peak_bytes(lambda: backward(False, capped=True)) - held * numbers == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("attention", "dropout"), [("sdpa", 0.0), ("eager", 0.0), ("eager", 0.1)])
def test_layers_of_transformers_keep_what_is_counted(kind: str, dtype: str, attention: str, dropout: float) -> None:
    """Norms in fp32, gates with their activation, scores of eager attention in fp32 and in the model's dtype."""
    import transformers
    from torch.autograd.graph import saved_tensors_hooks

    tokens, heads, element = 256, 8, 2 if dtype == "bfloat16" else 4
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 1, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128, "max_position_embeddings": tokens}
    name = {"llama": "Llama", "qwen3": "Qwen3"}[kind]
    config = getattr(transformers, f"{name}Config")(**sizes, attention_dropout=dropout, attn_implementation=attention)
    modules = getattr(transformers.models, kind)
    modules = getattr(modules, f"modeling_{kind}")
    layer = getattr(modules, f"{name}DecoderLayer")(config, 0).to(getattr(torch, dtype)).train()
    hidden = torch.randn(1, tokens, 256, dtype=getattr(torch, dtype), requires_grad=True) * 1
    indices = getattr(modules, f"{name}RotaryEmbedding")(config)(hidden, torch.arange(tokens)[None])
    shared = {entry.untyped_storage()._cdata for entry in (*layer.parameters(), *indices)}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in shared:
            kept[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        mask = torch.zeros(1, 1, tokens, tokens, dtype=hidden.dtype) if attention == "eager" else None
        layer(hidden, position_embeddings=indices, attention_mask=mask)
    measured = sum(value.nbytes() for value in kept.values())
    measured -= (element - 1) * heads * tokens**2 * (dropout > 0)  # masks are as wide as numbers on CPUs, one byte on GPUs
    fields = {**config.to_dict(), "attn_implementation": "eager"} if attention == "eager" else config.to_dict()
    fields.pop("_attn_implementation", None)
    model = model_from_config(fields, "tests", tokens, dtype, "tests")
    assert _kept(model, DEEPSPEED, dtype) == pytest.approx(measured, rel=0.01)
    assert _kept(model, Framework("fused"), dtype) < 0.9 * measured


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "granite", "starcoder2", "opt"])
@pytest.mark.parametrize("autocast", [False, True])
def test_models_of_transformers_keep_what_is_counted(kind: str, autocast: bool) -> None:
    """Memory is counted for each layer, as four layers keep more than two; under autocast without its copies of weights."""
    from torch.autograd.graph import saved_tensors_hooks
    from transformers import AutoConfig, AutoModelForCausalLM

    tokens = 256
    sizes: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 8, "vocab_size": 128, "pad_token_id": None}
    sizes |= {"max_position_embeddings": tokens, "bos_token_id": None, "eos_token_id": None}
    wide = {"intermediate_size": 768, "num_key_value_heads": 2, "head_dim": 32}
    sizes |= {"ffn_dim": 1024, "word_embed_proj_dim": 256, "dropout": 0.0} if kind == "opt" else wide

    def kept(layers: int) -> int:
        made = AutoConfig.for_model(kind, **sizes, num_hidden_layers=layers, use_cache=False)
        model = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").train()
        model = model if autocast else model.to(torch.bfloat16)
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        storages: dict[int, Any] = {}

        def pack(tensor: Any) -> Any:
            if (storage := tensor.untyped_storage())._cdata not in own:
                storages[storage._cdata] = storage
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(torch.ones(1, tokens, dtype=torch.int64), use_cache=False)
        products = sum(
            one_parameter.numel()
            for name, one_parameter in model.named_parameters()
            if "layers" in name and one_parameter.dim() > 1
        )
        return sum(one_storage.nbytes() for one_storage in storages.values()) - 2 * products * autocast

    config = AutoConfig.for_model(kind, **sizes, num_hidden_layers=2).to_dict()
    config.pop("_attn_implementation", None)
    model = model_from_config(config, "tests", tokens, "bfloat16", "tests")
    held = Held(autocast=autocast)
    layout = RunLayout(1, 1, 1, 1, 1, 0, 1, False, RecomputePolicy(), "bfloat16", "bfloat16", 1, 1, DEEPSPEED, held=held)
    counted = sum(kept_bytes(unit, layout) for unit in model.units if unit.layer == 1)
    assert counted == pytest.approx((kept(4) - kept(2)) / 2, rel=0.02)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_gradient_of_scores_makes_what_is_counted_for_a_while(dtype: str, dropout: float) -> None:
    from transformers.models.llama.modeling_llama import eager_attention_forward

    tokens, heads, width = 512, 8, 8
    module = torch.nn.Module().train()
    module.num_key_value_groups = 1
    dtyped = getattr(torch, dtype)
    inputs = [torch.randn(1, heads, tokens, width, dtype=dtyped, requires_grad=True) for _ in range(3)]

    def backward() -> None:
        eager_attention_forward(module, *inputs, None, scaling=1.0, dropout=dropout)[0].sum().backward()

    scores = heads * tokens**2
    fields = {"model_type": "llama", "hidden_size": heads * width, "num_attention_heads": heads, "num_hidden_layers": 1}
    fields |= {"intermediate_size": 64, "vocab_size": 128, "attention_dropout": dropout, "attn_implementation": "eager"}
    fields |= {"max_position_embeddings": tokens, "num_key_value_heads": heads}
    model = model_from_config(fields, "tests", tokens, dtype, "tests")
    layout = RunLayout(1, 1, 1, 1, 1, 0, 1, False, RecomputePolicy(), dtype, dtype, 1, 1, DEEPSPEED)  # type: ignore[arg-type]
    unit = next(unit for unit in model.units if unit.kind == "attention")
    element = 2 if dtype == "bfloat16" else 4
    held = (element + 4 * (element < 4) + (dropout > 0) * (1 + element * (element == 4))) * scores
    mask = (element - 1) * scores * (dropout > 0)  # as wide as numbers on CPUs
    assert peak_bytes(backward) - mask == pytest.approx(held + score_gradient_bytes(unit, layout), rel=0.05)


def _kept(model: Model, framework: Framework, dtype: Any) -> float:
    layout = RunLayout(1, 1, 1, 1, 1, 0, 1, False, RecomputePolicy(), dtype, dtype, 1, 1, framework)
    return sum(kept_bytes(unit, layout) for unit in model.units if unit.layer == 1)


@pytest.mark.parametrize(
    ("options", "note", "temporaries"),
    [
        ({"foreach": False}, None, 2),
        ({"foreach": True}, "foreach", 1),
        ({"fused": True}, "adamw_torch_fused", 0),
    ],
)
def test_steps_hold_what_the_kernels_of_torch_do(options: dict[str, bool], note: str | None, temporaries: int) -> None:
    """AdamW's, of a shard whose gradients were flattened and copied to fp32, as DeepSpeed has them."""
    count, pieces = 1 << 16, 8
    master = torch.zeros(count)
    optimizer = torch.optim.AdamW([master], **options)
    master.grad = torch.zeros(count)
    optimizer.step()
    master.grad = None
    gradients = [torch.ones(count // pieces, dtype=torch.bfloat16) for _ in range(pieces)]
    flatten = torch._utils._flatten_dense_tensors

    def copied() -> None:
        master.grad = flatten(gradients).to(torch.float32)

    assert peak_bytes(copied) == 6 * count

    def stepped() -> None:
        copied()
        optimizer.step()

    assert peak_bytes(stepped) == pytest.approx(max(6, 4 + 4 * temporaries) * count, rel=0.01)
    date = "2022-06" if temporaries == 2 else None
    run = laid(**ZERO_3, note=note, date=date)
    assert run.layout.held.temporaries == temporaries
    assert ("optimizer's kernels" in run.assumed) == (note is None)


def test_a_step_of_zero_2_copies_the_gradients_of_the_shard() -> None:
    """Parameters in fp16, masters, moments and gradients of an eighth; these as one tensor, and its copy in fp32."""
    zero_2: dict[str, Any] = DENSE | {"gpu": "V100 32GB", "fsdp": "ZeRO-2", "precision": "fp16", "framework": "DeepSpeed"}
    run = predicted(**zero_2, note="overlap_comm off")
    assert run.memory is not None and run.peak_gib is not None and run.laid is not None
    fixed = run.laid.layout.framework.fixed_bytes
    assert run.memory.stepping_bytes == pytest.approx(2 * COUNT + (4 + 8 + 2 + 2 + 4) * COUNT / 8 + fixed, rel=1e-3)
    assert run.memory.peak_bytes == max(run.memory.stepping_bytes, run.memory.passes_bytes)
    two, unsaid = predicted(**zero_2, note="overlap_comm true"), predicted(**zero_2)
    assert unsaid.memory == two.memory, "rows that say nothing have two buckets, as their time is of reductions that overlap"
    one = predicted(**zero_2 | {"gbs": 8}, note="overlap_comm off")
    assert two.memory is not None and one.memory is not None
    assert two.memory.buffers_bytes - run.memory.buffers_bytes == 2 * 5e8
    assert run.memory.buffers_bytes - one.memory.buffers_bytes == pytest.approx(2 * COUNT / 8, rel=1e-3)


def test_zero_3_steps_by_sub_groups_in_addition_to_its_bucket() -> None:
    whole, parts = predicted(**ZERO_3), predicted(**ZERO_3, note="sub_group_size 1e8, reduce_bucket_size=16777216, fused adam")
    assert whole.memory is not None and parts.memory is not None
    assert whole.memory.standing_bytes == pytest.approx(16 * COUNT / 8, rel=0.02)
    assert whole.memory.copies_bytes == pytest.approx(8 * COUNT / 8 + 2 * 5e8, rel=1e-3)
    assert parts.memory.copies_bytes == pytest.approx(6 * 1e8 + 2 * 16777216)
    assert parts.memory.buffers_bytes == 2 * 2 * 16777216
    block = 2 * (max(131_072_000, 5e8) + 5e7)  # half of what stays for its next use, and what is gathered ahead
    assert whole.memory.states_bytes - whole.memory.standing_bytes == pytest.approx(block + 2 * 202_383_360, rel=0.02)


def test_runs_that_ran_out_of_memory_do_not_fit() -> None:
    rows: list[dict[str, Any]] = [
        DENSE | {"model": "llama3-8b", "gpu": "RTX 3090", "fsdp": "ZeRO-3", "precision": "fp16"},
        DENSE | {"gpu": "V100 32GB", "fsdp": "ZeRO-2", "precision": "fp16"},
        DENSE
        | {"model": "qwen1.5-32b", "gpu": "A100 80GB", "gbs": 8, "seq": 32768, "fsdp": "ZeRO-3, offload_param"}
        | {"precision": "bf16"},
    ]
    assert [predicted(**row, framework="DeepSpeed", oom=True).fits for row in rows] == [False] * 3


def test_a_loss_in_chunks_never_holds_all_logits() -> None:
    """A million tokens over eight context-parallel ranks: 52.3 GiB measured, and all logits are 222 GiB."""
    row: dict[str, Any] = {"model": "qwen3-8b", "gpu": "H100", "gpus": 8, "mbs": 1, "gbs": 1, "seq": 1048576, "cp": 8}
    row |= {"fsdp": "FSDP2", "recompute": "full + cpu offload", "precision": "bf16", "framework": "Accelerate"}
    chunked, full = predicted(**row, note="chunked loss"), predicted(**row)
    assert chunked.fits and chunked.peak_gib == pytest.approx(52.3, rel=0.1) and full.fits is False
    assert full.memory is not None and full.memory.workspace_bytes == 131072 * 151936 * 12


@pytest.mark.parametrize(
    ("note", "tokens"),
    [
        *((note, 8 * 8192) for note in (None, "full logits", "no liger kernel", "liger off")),
        *((note, 8192) for note in ("chunked loss", "chunked cross-entropy", "chunked CE", "loss in chunks")),
        *((note, 256) for note in ("chunked_nll", "TRL, loss in chunks")),
        *((note, 0) for note in ("cut cross entropy", "CCE")),
    ],
)
def test_words_of_losses(note: str | None, tokens: int) -> None:
    """Tokens whose logits are there at once, of eight samples."""
    row = ZERO_3 | {"model": "llama3-8b", "seq": 8192, "mbs": 8, "gbs": 64, "recompute": "none"}
    memory, held = predicted(**row, note=note).memory, laid(**row, note=note).layout.held
    assert memory is not None
    hidden = (8 * 8192 + 128256) * 4096 * 2 if tokens == 0 else 0  # gradients of hidden states and of the table
    assert memory.workspace_bytes == tokens * 128256 * 12 + hidden
    assert held.in_place == (tokens == 0)


def test_liger_s_loss_is_instead_of_as_many_logits_as_hidden_states() -> None:
    """Chunks of the next power of two of 8192 tokens over 32 parts, the vocabulary over the hidden size; and no composed
    norms."""
    row = ZERO_3 | {"model": "llama3-8b", "seq": 8192, "recompute": "selective(attention)"}
    run = laid(**row, note="liger")
    assert run.layout.held.chunk_tokens == 256 and run.layout.held.in_place and not run.layout.framework.composed
    assert laid(**row).layout.framework.composed and laid(**row).layout.held.chunk_tokens is None


def test_scores_are_kept_where_no_fused_attention_runs() -> None:
    """Megatron-LM's kernels need compute capability 8; torch's own attention, which transformers calls, does not."""
    row: dict[str, Any] = {"model": "gpt2", "gpus": 1, "mbs": 4, "gbs": 16, "seq": 1024, "recompute": "none"}
    sizes = {"layers": 36, "hidden": 1280, "heads": 20, "vocab": 50257, "precision": "fp16", "zero": 0}
    peaks = {}
    for framework in ("Megatron-LM", "Transformers"):
        for gpu in ("V100 32GB", "A100 80GB"):
            run = predicted(**row | sizes, framework=framework, gpu=gpu)
            peaks[framework, gpu] = run.peak_gib
            assert run.laid is not None and ("attention" in run.laid.assumed) == ((framework, gpu[0]) == ("Megatron-LM", "V"))
    scores = 5 * 4 * 20 * 1024**2 * 36 / GIB
    assert (
        scores < peaks["Megatron-LM", "V100 32GB"] - peaks["Megatron-LM", "A100 80GB"] < 1.25 * scores
    )  # and masks of dropout
    assert peaks["Transformers", "V100 32GB"] == pytest.approx(peaks["Transformers", "A100 80GB"])
    stated = predicted(**row | sizes, framework="Transformers", gpu="A100 80GB", note="attn_implementation: eager")
    assert stated.peak_gib - peaks["Transformers", "A100 80GB"] == pytest.approx(
        7 / 5 * scores, rel=0.02
    )  # with the mask of its dropout
    assert not laid(**row | sizes, framework="Megatron-LM", gpu="V100 32GB", note="flash-attn").model.config.get(
        "attn_implementation"
    )


def test_verdicts_near_the_limit_say_so() -> None:
    run = predicted(**DENSE, gpu="V100 32GB", fsdp="ZeRO-2", precision="fp16", framework="DeepSpeed")
    small = predicted(**DENSE | {"gpus": 64, "gbs": 64}, gpu="H100-80GB-SXM", fsdp="ZeRO-3", framework="DeepSpeed")
    assert run.close and not run.fits and small.fits and not small.close
    assert [row[-1] for row in Predictions([run, small]).cells()] == [tight_words(run.fit_probability or 0), "yes"]


def test_copies_reduce_their_gradients_in_buckets_that_are_copies(tmp_path: Path) -> None:
    """torch's DistributedDataParallel holds all gradients; DeepSpeed at most a bucket."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    module = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(8)))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        copies: list[Any] = []
        made = peak_bytes(lambda: copies.append(DistributedDataParallel(module, broadcast_buffers=False, init_sync=False)))
        copies[0](torch.ones(1, 64)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert made == pytest.approx(4 * 8 * 64**2, rel=0.01)
    assert all(
        parameter.grad.untyped_storage().nbytes() == 4 * 64**2 for parameter in module.parameters()
    )  # none is a view of a bucket
    row = DENSE | {"gpu": "H200", "precision": "bf16", "fsdp": "DDP"}
    copied = predicted(**row, framework="Accelerate").memory
    assert copied is not None and copied.buffers_bytes == pytest.approx(4 * COUNT, rel=1e-3)
    assert copied.standing_bytes == pytest.approx((2 + 4 + 12) * COUNT, rel=0.01)
    bucket = predicted(**row, framework="DeepSpeed").memory
    assert bucket is not None and bucket.buffers_bytes == 2 * 5e8


def test_copies_of_transformers_train_under_autocast() -> None:
    """In mixed precision, unless states are shared, or DeepSpeed or the row has the model itself in half precision."""
    row = DENSE | {"gpu": "H200", "precision": "bf16", "framework": "Accelerate"}
    autocast = [laid(**row | stated).layout.held.autocast for stated in ({"fsdp": "DDP"}, {"fsdp": "FSDP2"})]
    others: list[dict[str, Any]] = [{"framework": "DeepSpeed"}, {"note": "pure bf16"}, {"precision": "fp32"}]
    others += [{"framework": "PyTorch"}, {"note": "torch.compile"}]
    autocast += [laid(**row | {"fsdp": "DDP"} | stated).layout.held.autocast for stated in others]
    assert autocast == [True] + [False] * 6
    liger = laid(**row | {"fsdp": "DDP", "note": "liger"}).layout  # whose kernels get what autocast has, too
    assert liger.held.autocast and not liger.framework.composed


def test_stages_are_chosen_with_what_the_trainer_holds_in_each() -> None:
    run = laid(**DENSE | {"seq": 4096}, gpu="A100 40GB", framework="DeepSpeed", precision="bf16")
    assert run.layout.zero > 1 and run.layout.held.bucket_elements >= 5e8 and run.layout.held.flattens
    assert run.assumed["zero"].endswith("with which it fits")


def test_megatron_deepspeed_reduces_from_deepspeed_s_buckets() -> None:
    row = DENSE | {"gpu": "A100 80GB", "framework": "Megatron-DeepSpeed", "fsdp": "ZeRO-1", "precision": "bf16", "tp": 2}
    held = laid(**row, note="reduce_bucket_size 1e8, overlap_comm").layout.held
    assert held.bucket_elements == 2e8 and laid(**row | {"framework": "Megatron-LM"}).layout.held.bucket_elements == 0


@pytest.mark.parametrize(
    ("loaded", "autocast", "note"), [("float32", True, None), ("bfloat16", True, "pure bf16"), ("bfloat16", False, "pure bf16")]
)
def test_states_of_copies_are_what_torch_holds(loaded: str, autocast: bool, note: str | None) -> None:
    """Parameters, gradients and moments of AdamW as wide as parameters are loaded; what autocast casts is apart from them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4)).to(getattr(torch, loaded))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.ones(1, 16, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    held = [entry.nbytes for entry in (*model.parameters(), *(parameter.grad for parameter in model.parameters()), *moments)]
    count = sum(parameter.numel() for parameter in model.parameters())
    run = predicted(**DENSE, gpu="H200", fsdp="DDP", precision="bf16", framework="Accelerate", note=note)
    assert run.memory is not None and run.laid is not None
    copies = 2 * COUNT * run.laid.layout.held.autocast  # of parameters, which products under autocast take
    fixed = run.laid.layout.framework.fixed_bytes
    assert (run.memory.standing_bytes - copies - fixed) / COUNT == pytest.approx(sum(held) / count, rel=0.01)


@pytest.mark.parametrize(("loaded", "note"), [("float32", "foreach"), ("bfloat16", "foreach, pure bf16")])
def test_kernels_of_the_step_are_as_wide_as_what_they_step(loaded: str, note: str) -> None:
    count = 1 << 16
    parameter = torch.zeros(count, dtype=getattr(torch, loaded))
    optimizer = torch.optim.AdamW([parameter], foreach=True)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    run = predicted(**DENSE, gpu="H200", fsdp="FSDP", precision="bf16", framework="Accelerate", note=note)
    assert run.memory is not None
    assert run.memory.copies_bytes / (COUNT / 8) == pytest.approx(peak_bytes(optimizer.step) / count, rel=0.01)
