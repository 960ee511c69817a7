"""Train a model as a pipeline with torch.distributed.pipelining: the stages and the order of passes of a plan.

    torchrun --nproc-per-node WORLD pipeline.py --steps 10 [--device cuda] [--check]

It reads two files beside it. stages.json: the model's configuration, and for each stage its ranks, its sub-layers and the
names of its modules in the Hugging Face model. schedule.csv: one row of passes for each stage. The model starts from random
weights and learns from random tokens: put your weights into `build` and your samples into `samples`.

A stage may begin between a layer's attention and its feed-forward part, so it runs sub-layers, not layers; what crosses from
stage to stage is always one tensor, the residual stream. Stages with several ranks are replicated, with their gradients
averaged after the step; a head's matrix that is also the embedding's has its gradient summed over the two stages that hold it.

Needs torch 2.11 or later and transformers 5. `trainplan export PLAN --to torch` writes this file.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).parent
LIKE_LLAMA = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "glm": "GlmForCausalLM",
    "nemotron": "NemotronForCausalLM",
}
CLASSES = {"gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM", **LIKE_LLAMA}
TIED = {
    "gpt2": ("transformer.wte", "lm_head"),
    "bert": ("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
    **dict.fromkeys(LIKE_LLAMA, ("model.embed_tokens", "lm_head")),
}


def build(spec: dict[str, Any]) -> Any:
    """The whole model, the same on every rank."""
    torch.manual_seed(0)
    # Without a mask the fused attention is causal by itself where the model is.
    config = transformers.AutoConfig.for_model(**{**spec["model"], "attn_implementation": "sdpa"})
    return getattr(transformers, CLASSES[spec["model"]["model_type"]])(config).to(getattr(torch, spec["dtype"]))


def samples(spec: dict[str, Any], step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a whole step, the same on every rank."""
    rows = spec["replicas"] * spec["micro_batches"] * spec["micro_batch_samples"]
    shape, vocabulary = (rows, spec["sequence"]), spec["model"]["vocab_size"]
    source = torch.Generator().manual_seed(step)
    return torch.randint(vocabulary, shape, generator=source), torch.randint(vocabulary, shape, generator=source)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    exact = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(logits.flatten(0, 1).to(exact), targets.flatten())


def gpt2(model: Any, part: str, block: int, x: Tensor) -> Tensor:
    body = model.transformer
    if part == "embedding":
        return body.drop(body.wte(x) + body.wpe(torch.arange(x.shape[1], device=x.device)))
    if part == "attention":
        return x + body.h[block].attn(body.h[block].ln_1(x))[0]
    if part == "ffn":
        return x + body.h[block].mlp(body.h[block].ln_2(x))
    return model.lm_head(body.ln_f(x))


def llama(model: Any, part: str, block: int, x: Tensor) -> Tensor:
    body = model.model
    if part == "embedding":
        return body.embed_tokens(x)
    if part == "attention":
        layer, places = body.layers[block], torch.arange(x.shape[1], device=x.device)[None]
        turns, mask = body.rotary_emb(x, position_ids=places), window_mask(model.config, layer, x)
        y = layer.self_attn(layer.input_layernorm(x), position_embeddings=turns, attention_mask=mask)[0]
        return x + getattr(layer, "resid_attn_dropout", nn.Identity())(y)  # Phi-3's
    if part == "ffn":
        layer = body.layers[block]
        return x + getattr(layer, "resid_mlp_dropout", nn.Identity())(layer.mlp(layer.post_attention_layernorm(x)))
    return model.lm_head(body.norm(x))


def window_mask(config: Any, layer: Any, x: Tensor) -> Tensor | None:
    """Which keys a query meets where they lie within a sliding window; None where all before it do."""
    window = getattr(layer.self_attn, "sliding_window", getattr(config, "sliding_window", None))
    if not window or window >= x.shape[1]:
        return None
    places = torch.arange(x.shape[1], device=x.device)
    away = places[:, None] - places
    return ((away >= 0) & (away < window))[None, None]


def bert(model: Any, part: str, block: int, x: Tensor) -> Tensor:
    """BERT norms what a sub-layer adds up; here the norm comes with the sub-layer after it, so that one tensor crosses."""
    if part == "embedding":
        tables = model.bert.embeddings
        places, types = torch.arange(x.shape[1], device=x.device), torch.zeros_like(x)
        return tables.word_embeddings(x) + tables.token_type_embeddings(types) + tables.position_embeddings(places)
    layers = model.bert.encoder.layer
    if part == "head":
        return model.cls(layers[-1].output.LayerNorm(x))
    layer = layers[block]
    if part == "attention":
        tables = model.bert.embeddings
        h = layers[block - 1].output.LayerNorm(x) if block else tables.dropout(tables.LayerNorm(x))
        return h + layer.attention.output.dropout(layer.attention.output.dense(layer.attention.self(h)[0]))
    h = layer.attention.output.LayerNorm(x)
    return h + layer.output.dropout(layer.output.dense(layer.intermediate(h)))


RUN = {"gpt2": gpt2, "bert": bert, **dict.fromkeys(LIKE_LLAMA, llama)}


class Stage(nn.Module):
    """The sub-layers of one stage; the parameters of all others are let go."""

    def __init__(self, model: Any, family: str, stage: dict[str, Any]) -> None:
        super().__init__()
        for name, module in model.named_modules():
            if not any(name == kept or name.startswith(kept + ".") for kept in stage["modules"]):
                for parameter in module._parameters:
                    module._parameters[parameter] = None
        self.model, self.run, self.recomputed = model, RUN[family], set(stage["recomputed"])
        self.units = stage["units"]

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            where, _, part = unit.rpartition(".")
            block = int(where.removeprefix("block")) if where else 0
            if unit in self.recomputed:
                x = checkpoint(self.run, self.model, part, block, x, use_reentrant=False)
            else:
                x = self.run(self.model, part, block, x)
        return x


def tied_weight(stage: Stage, spec: dict[str, Any], index: int) -> nn.Parameter | None:
    """The matrix that the first and the last stage share, on these."""
    if not spec["tied"] or 0 < index < len(spec["stages"]) - 1:
        return None
    return stage.model.get_submodule(TIED[spec["model"]["model_type"]][index > 0]).weight


def add_up(gradients: list[Tensor | None], group: Any, parts: int) -> None:
    """Sum over a group, divided by `parts`."""
    for gradient in gradients:
        if gradient is not None:
            dist.all_reduce(gradient, group=group)
            gradient /= parts


def checked(spec: dict[str, Any], stage: Stage, tokens: Tensor, targets: Tensor) -> float:
    """The largest difference of a gradient of this stage from that of the whole model on one process."""
    whole = build(spec).to(tokens.device).eval()
    loss_of(whole(tokens).logits, targets).backward()
    wanted = dict(whole.named_parameters(remove_duplicate=False))
    gradients = {name: one.grad for name, one in stage.model.named_parameters() if one.grad is not None}
    return max(float((gradient - wanted[name].grad).abs().max()) for name, gradient in gradients.items())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--check", action="store_true", help="compare the first gradients with one process, without dropout")
    options = parser.parse_args()
    spec = json.loads((HERE / "stages.json").read_text())
    count, replicas = len(spec["stages"]), spec["replicas"]
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", local)
    if options.device == "cuda":
        torch.cuda.set_device(device)
    mesh = init_device_mesh(options.device, (count, replicas), mesh_dim_names=("stage", "replica"))
    index, replica = mesh.get_coordinate() or (0, 0)
    ends = [dist.new_group([one, (count - 1) * replicas + one]) for one in range(replicas)]

    stage = Stage(build(spec), spec["model"]["model_type"], spec["stages"][index]).to(device)
    stage.train(not options.check)
    torch.manual_seed(1 + dist.get_rank())  # dropout
    part = PipelineStage(stage, index, count, device, group=mesh["stage"].get_group())
    schedule = _PipelineScheduleRuntime([part], n_microbatches=spec["micro_batches"], loss_fn=loss_of)
    schedule._load_csv(str(HERE / "schedule.csv"))
    optimizer = torch.optim.AdamW(stage.parameters())
    for step in range(options.steps):
        tokens, targets = (one.to(device) for one in samples(spec, step))
        mine, wanted = tokens.chunk(replicas)[replica], targets.chunk(replicas)[replica]
        losses: list[Tensor] = []
        if index == 0:
            schedule.step(mine)
        elif index == count - 1:
            schedule.step(target=wanted, losses=losses)
        else:
            schedule.step()
        shared = tied_weight(stage, spec, index)
        if shared is not None:
            add_up([shared.grad], ends[replica], 1)
        if replicas > 1:
            add_up([one.grad for one in stage.parameters()], mesh["replica"].get_group(), replicas)
        if options.check and step == 0:
            most = checked(spec, stage, tokens, targets)
            print(f"rank {dist.get_rank()}: gradients differ by {most:.2e} at most", flush=True)
        optimizer.step()
        optimizer.zero_grad()
        if losses and replica == 0:
            print(f"step {step}: loss {sum(float(one) for one in losses) / len(losses):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
