"""The mixture of experts of a measured run, and the layout of its units of experts, from the run's fields."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from trainplan.formulations.costs.overlapped.folding import Dispatcher, ExpertsLayout, check_folded, expert_data_degree
from trainplan.formulations.costs.overlapped.frameworks import BRIDGE
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.families import Unit
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import (
    Attention,
    Experts,
    FeedForward,
    LanguageHead,
    LatentAttention,
    Sublayer,
    TokenEmbedding,
)
from trainplan.validation.rows import Run
from trainplan.validation.words import FUNCTIONAL_TEST, flag

# Tokens of the fullest rank over the mean where a router learns: of the two published pairs of runs that differ in it alone
# (Qwen3-235B-A22B on 256 H100), whose steps differ by 15 and 24 %.
REAL_IMBALANCE = 1.3
UNSAID_IMBALANCE = 1.0
# Host's times of a unit of experts, of two runs of Qwen3-30B-A3B on B200 with little work for each kernel: with a capacity, and
# where the host waits for the numbers of rows.
ISSUED_NS, WAITED_NS = 1_900_000.0, 3_700_000.0
DROPLESS = re.compile(r"drop-?less")
DISPATCHERS: tuple[tuple[str, Dispatcher], ...] = (
    (r"deep[_ -]?ep|hybrid[_ -]?ep|flex|uccl", "deduplicated"),
    (r"all[_ -]?to[_ -]?all|a2a", "all-to-all"),
    (r"all[_ -]?gather", "all-gather"),
)
LATENT = {"q_lora": "query_latent", "kv_lora": "latent", "qk_nope": "plain", "qk_rope": "turned", "v_head": "value_width"}
SIZES = ("layers", "hidden", "heads", "experts", "topk")
TEST_VOCABULARY = 50257  # of GPT-2's tokens, with which Megatron-LM's functional tests are run
GROUPED_ROUTERS = {(256, 8): (8, 4)}  # of DeepSeek-V3 (config.json, n_group and topk_group): groups, and of how many a token is


def is_mixture(run: Run) -> bool:
    """Whether a measured run states that its model is a mixture of experts: more than one, or ranks that divide them."""
    return (run.experts or 1) > 1 or (run.ep or 1) > 1


def mixture_model(run: Run, tp: int, framework: Framework, dtype: str, assumed: dict[str, str]) -> Model:
    """The mixture of experts that a measured run trains, from the sizes that the run states.

    tp: tensor-parallel degree, which decides how the vocabulary is padded. framework: the cost model's settings for the run's
    framework. dtype: the model's dtype. assumed: assumptions as texts by name, written to: gets an entry for each thing that
    the run does not specify. Raises InputError for a missing size, and for layers that are neither attention nor networks.
    """
    if run.model.startswith("hybrid"):
        raise InputError(run.id, "model", "has state-space layers", "leave the row out: attention and experts are predicted")
    if missing := next((size for size in SIZES if getattr(run, size) is None), None):
        raise InputError(run.id, missing, "is missing", "give it: mixtures of experts are predicted by their sizes")
    note = (run.note or "").lower()
    test = FUNCTIONAL_TEST in note
    plain = test and flag(note, "normalization rmsnorm") is None and "rmsnorm" not in note and run.mla is None
    tokens, hidden = run.seq or 4096, run.hidden or 0
    if run.seq is None:
        assumed["seq"] = str(tokens)
    common: dict[str, Any] = {
        "tokens": tokens,
        "hidden": hidden,
        "dtype": dtype,
        "norm": "layer" if plain else "rms",
        "dropout": _dropout(note) if test else 0.0,
        "unfused": not framework.fused_attention,
    }
    mixer, others = _mixers(run, common, test, note)
    network, experts = _networks(run, common, test, note)
    vocabulary = run.vocab or TEST_VOCABULARY
    multiple = framework.pads * tp
    vocabulary = -(-vocabulary // multiple) * multiple
    if run.vocab is None:
        assumed["vocab"] = str(vocabulary)
    pattern = layers_with_experts(run)
    positions = tokens if test and "rope" not in note and run.mla is None else 0
    units = [Unit("embedding", 0, TokenEmbedding(**common, vocabulary=vocabulary, positions=positions))]
    every = run.window_every or 1
    for index, with_experts in enumerate(pattern):
        own = others if others is not None and index % every == 0 else mixer
        units += _layer(index + 1, own, experts if with_experts else network)
    for index in range(len(pattern), len(pattern) + (run.mtp or 0)):
        units += _layer(index + 1, mixer, experts)
    head = LanguageHead(**common | {"dropout": 0.0}, vocabulary=vocabulary)
    units.append(Unit("head", len(pattern) + (run.mtp or 0) + 1, head))
    tied = (test and "untie-embeddings" not in note) if run.untied is None else not run.untied
    return Model(run.model, {"model_type": "mixture"}, tuple(units), tied, tokens, dtype)


def _layer(number: int, mixer: Sublayer, network: Sublayer) -> list[Unit]:
    """The units of one layer. number: its number, from 1. mixer, network: its two sub-layers."""
    return [Unit(f"layer{number}.{part.kind}", number, part) for part in (mixer, network)]


def _dropout(note: str) -> float:
    """The dropout of hidden states that a functional test's note states (`dropout 0.0/0.0`, attention's first); 0.1 if none."""
    match = re.search(r"dropout ([\d.]+)/([\d.]+)", note)
    return float(match[2]) if match else 0.1


def _mixers(run: Run, common: dict[str, Any], test: bool, note: str) -> tuple[Sublayer, Attention | None]:
    """The attention of a run's layers, and that of layers with a sliding window, or None. common: fields of all sub-layers.
    test: whether the run is a functional test of Megatron-LM. note: its note in lower case."""
    heads, hidden = run.heads or 1, run.hidden or 0
    if run.mla is not None:
        sizes: dict[str, Any] = {LATENT[name]: int(value or 0) for name, value in run.mla.items() if name in LATENT}
        if missing := next((name for name, field in LATENT.items() if field not in sizes and name != "q_lora"), None):
            raise InputError(run.id, f"mla.{missing}", "is missing", "give q_lora, kv_lora, qk_nope, qk_rope and v_head")
        return LatentAttention(**common, heads=heads, **sizes), None
    bias = test and "disable-bias-linear" not in note
    own = Attention(
        **common,
        heads=heads,
        kv_heads=run.kv_heads or heads,
        width=run.head_dim or hidden // heads,
        causal=True,
        bias=bias or run.window is not None,
        out_bias=bias or run.window is not None,
        rotary=0.0 if test else 10000.0,
        normed_heads="qwen3" in run.model.lower(),
        attention_dropout=common["dropout"],
    )
    if run.window is None:
        return own, None
    return own, replace(own, sliding=run.window)


def _networks(run: Run, common: dict[str, Any], test: bool, note: str) -> tuple[FeedForward, Experts]:
    """The dense network and the experts of a run's layers. Arguments as of `_mixers`."""
    hidden = run.hidden or 0
    gated = (not test or "swiglu" in note) if run.swiglu is None else run.swiglu
    bias = (test and "disable-bias-linear" not in note) or run.window is not None
    dense, inner = run.ffn or 4 * hidden, run.moe_ffn or run.ffn or 4 * hidden
    activation: Any = "silu" if gated else "gelu"
    network = FeedForward(**common, inner=dense, gated=gated, activation=activation, bias=bias)
    shared = run.shared_ffn if run.shared_ffn is not None else (run.shared_experts or 0) * inner
    groups, chosen_groups = GROUPED_ROUTERS.get((run.experts or 0, run.topk or 0), (1, 1)) if run.mla else (1, 1)
    experts = Experts(
        **common,
        experts=run.experts or 1,
        chosen=run.topk or 1,
        inner=inner,
        gated=gated,
        activation=activation,
        bias=bias and not test,
        shared_inner=shared,
        groups=groups,
        chosen_groups=chosen_groups,
    )
    return network, experts


def layers_with_experts(run: Run) -> tuple[bool, ...]:
    """For each layer of a run's model, whether it has experts: all but the first `dense_first`, or those that `moe_layer_freq`
    names. Raises InputError for a list that is not of as many layers."""
    layers, stated = run.layers or 0, run.moe_layer_freq
    if isinstance(stated, str) and not stated.strip().isdigit():
        parts = re.findall(r"\[([01](?:,\s*[01])*)\](?:\*(\d+))?", stated)
        listed = [digit == "1" for digits, times in parts for digit in re.findall("[01]", digits) * int(times or 1)]
        if len(listed) != layers:
            problem = f"is {stated!r}, of {len(listed)} layers, and layers is {layers}"
            raise InputError(run.id, "moe_layer_freq", problem, f"give a list of {layers}, such as ([0]*1+[1]*{layers - 1})")
        return tuple(listed)
    every = int(stated or 1)
    return tuple(index % every == 0 and index >= (run.dense_first or 0) for index in range(layers))


def experts_layout(run: Run, model: Model, group: int, tp: int, framework: Framework, assumed: dict[str, str]) -> ExpertsLayout:
    """The layout of a measured run's units of experts.

    group: the number of devices of a pipeline stage. tp: tensor-parallel degree. framework: the cost model's settings for the
    run's framework. assumed: assumptions as texts by name, written to: gets an entry for each field that the run does not
    specify. Raises InputError for degrees that do not divide the experts, their width or the devices.
    """
    graphs = str(run.cuda_graph or "").lower()
    ep, etp, note = run.ep or 1, run.etp, (run.note or "").lower()
    if etp is None:  # Megatron-Core's default is tp (`expert_tensor_parallel_size`); other runtimes divide no expert
        etp = tp if framework.pads > 1 and group % (tp * ep) == 0 else 1
        assumed["etp"] = str(etp)
    expert_data_degree(group, ep, etp, run.id)
    for part in model.sublayers.values():
        if isinstance(part, Experts):
            check_folded(part.experts, part.inner, ep, etp, run.id)
    return ExpertsLayout(
        ep=ep,
        etp=etp,
        dispatcher=_dispatcher(run, framework, assumed),
        imbalance=_imbalance(run, assumed),
        capacity=run.capacity_factor,
        padded=bool(run.pad_to_capacity),
        grouped=run.grouped_gemm is not False,
        shared_alongside=bool(flag(note, r"moe[_ -]shared[_ -]expert[_ -]overlap")),
        exchange_alongside=bool(run.ep_overlap),
        fused="full_iteration" in graphs and framework.name == BRIDGE.name,
        issue_ns=_issue_ns(run, graphs),
    )


def _issue_ns(run: Run, graphs: str) -> float:
    """The time that the host takes to issue the forward pass of a unit of experts and of the attention before it. Without a
    capacity the host waits for the numbers of rows before it can issue their products. graphs: what the run's host issues as
    graphs, in lower case."""
    if "full" in graphs:
        return 0.0
    return (
        WAITED_NS if run.capacity_factor is None and "drop" not in DROPLESS.sub("", (run.routing or "").lower()) else ISSUED_NS
    )


def _dispatcher(run: Run, framework: Framework, assumed: dict[str, str]) -> Dispatcher:
    """How tokens come to their experts: as the run states it, or else as Megatron-Bridge's recipes have it (DeepEP or HybridEP,
    `apply_flex_dispatcher_backend`), and by all-to-all in other frameworks. Raises InputError for unknown words."""
    if run.dispatcher is None:
        usual: Dispatcher = "deduplicated" if framework.name == BRIDGE.name else "all-to-all"
        assumed["dispatcher"] = usual
        return usual
    words = run.dispatcher.lower()
    if (found := next((name for pattern, name in DISPATCHERS if re.search(pattern, words)), None)) is None:
        raise InputError(run.id, "dispatcher", f"is {run.dispatcher!r}", "give alltoall, allgather, deepep or hybridep")
    return found


def _imbalance(run: Run, assumed: dict[str, str]) -> float:
    """Tokens of the fullest rank over the mean: as the run states it, 1 where routing is forced to be balanced, or else what
    routers that learn have."""
    if run.imbalance is not None:
        return max(1.0, run.imbalance)
    if re.search("forced|balanced|uniform", (run.routing or "").lower()):
        return 1.0
    if re.search("not said", run.routing or ""):
        assumed["imbalance"] = f"{UNSAID_IMBALANCE:g}"
        return UNSAID_IMBALANCE
    assumed["imbalance"] = f"{REAL_IMBALANCE:g}, of routers that learn"
    return REAL_IMBALANCE


def string_stages(run: Run, layers: int, count: int) -> tuple[int, ...] | None:
    """The number of layers of each stage by Megatron-LM's layout string, such as `Et*4|(t*4|)*14tmL`; None if the run has none.
    Layers that predict further tokens (`m`) count with the last. Raises InputError unless it has `count` stages of `layers`
    layers together.
    """
    if run.pp_layout is None:
        return None
    text = run.pp_layout
    for pattern in (r"\(([^()]*)\)\*(\d+)", r"([A-Za-z])\*(\d+)"):
        while match := re.search(pattern, text):
            text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    stages = tuple(stage.count("t") + stage.count("m") for stage in text.split("|"))
    if len(stages) != count or sum(stages) != layers:
        problem = f"has {sum(stages)} layers in {len(stages)} stages"
        raise InputError(run.id, "pp_layout", problem, f"give {layers} layers in {count} stages")
    return stages
