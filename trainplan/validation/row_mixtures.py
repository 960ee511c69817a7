"""The mixture of experts of a measured run, and the layout of its units of experts, from the run's fields."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from trainplan.execution.launch_files.experts import pattern
from trainplan.execution.runtimes.megatron import layouts
from trainplan.formulations.costs.overlapped.folding import ExpertsLayout, check_folded, expert_data_degree
from trainplan.formulations.costs.overlapped.frameworks import BRIDGE
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.families import Unit
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.models.sublayers import (
    Attention,
    Experts,
    FeedForward,
    LanguageHead,
    LatentAttention,
    Norm,
    Sublayer,
    TokenEmbedding,
    TokenJoin,
)
from trainplan.profiling.shipped import folded, shipped, sized, sized_names
from trainplan.validation.mixture_words import dispatcher_of, graphs_of, imbalance_of, issue_ns, layout_string, runs_alongside
from trainplan.validation.rows import Run
from trainplan.validation.words import FUNCTIONAL_TEST, flag

LATENT = {"q_lora": "query_latent", "kv_lora": "latent", "qk_nope": "plain", "qk_rope": "turned", "v_head": "value_width"}
SIZES = ("layers", "hidden", "heads", "experts", "topk")
DISPATCHED_IN_BITS = r"(?:(?:fp8|8[ _-]?bit)[ _-]dispatch\w*|dispatch\w*[ _-](?:in[ _-])?(?:fp8|8[ _-]?bits?))"
USUAL_TOKENS = 4096  # of a sample, where a row does not say
TEST_VOCABULARY = 50257  # of GPT-2's tokens, with which Megatron-LM's functional tests are run
GROUPED_ROUTERS = {(256, 8): (8, 4)}  # of DeepSeek-V3 (config.json, n_group and topk_group): groups, and of how many a token is


def mixture_model(run: Run, tp: int, framework: Framework, dtype: str, assumed: dict[str, str]) -> Model:
    """The mixture of experts that a measured run trains, from the sizes that the run states.

    tp: tensor-parallel degree, which decides how the vocabulary is padded. framework: the cost model's settings for the run's
    framework. dtype: the model's dtype. assumed: assumptions as texts by name, written to: gets an entry for each thing that
    the run does not specify. Raises InputError for a missing size, and for layers that are neither attention nor networks.
    """
    if (known := _known(run, dtype)) is not None:
        return _with_run(known, run, tp, framework, assumed)
    if run.model.startswith("hybrid"):
        raise InputError(run.id, "model", "has state-space layers", "leave the row out: attention and experts are predicted")
    if missing := next((size for size in SIZES if getattr(run, size) is None), None):
        raise InputError(run.id, missing, "is missing", "give it: mixtures of experts are predicted by their sizes")
    note = (run.note or "").lower()
    test = FUNCTIONAL_TEST in note
    plain = test and flag(note, "normalization rmsnorm") is None and "rmsnorm" not in note and run.mla is None
    tokens, hidden = run.seq or USUAL_TOKENS, run.hidden or 0
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
    with_experts = layers_with_experts(run)
    positions = tokens if test and "rope" not in note and run.mla is None else 0
    units = [Unit("embedding", 0, TokenEmbedding(**common, vocabulary=vocabulary, positions=positions))]
    every = run.window_every or 1
    for index, has in enumerate(with_experts):
        own = others if others is not None and index % every == 0 else mixer
        units += _layer(index + 1, own, experts if has else network)
    head = Unit("head", len(with_experts) + 1, LanguageHead(**common | {"dropout": 0.0}, vocabulary=vocabulary))
    units += _ends(run, mixer, experts, head, len(with_experts))
    tied = (test and "untie-embeddings" not in note) if run.untied is None else not run.untied
    return Model(run.model, {"model_type": "mixture"}, tuple(units), tied, tokens, dtype)


def _known(run: Run, dtype: str) -> Model | None:
    """The mixture of experts that a measured run names, if it is one that comes with the package and has the sizes that the run
    states; with as many layers as the run states. dtype: the model's dtype."""
    names = [*shipped("mixtures"), *sized_names("mixtures")]
    own = folded(run.model)
    name = run.model if sized(run.model, "mixtures") else next((n for n in names if own and folded(n).startswith(own)), None)
    if name is None or (sized(name, "mixtures") is None):
        return None
    model = load_model(name, None, dtype, planned=False)
    changed = {"num_hidden_layers": run.layers or model.layers}
    if (sequence := run.seq or USUAL_TOKENS) > model.tokens:
        changed["max_position_embeddings"] = sequence
    model = model.with_fields(sequence=sequence, **changed)
    experts = next(part for part in model.sublayers.values() if isinstance(part, Experts))
    mixer = next(part for part in model.sublayers.values() if part.kind == "attention")
    shared = run.shared_ffn if run.shared_ffn is not None else (run.shared_experts or 0) * experts.inner or None
    stated = (
        (run.hidden, model.units[0].sublayer.hidden),
        (run.heads, getattr(mixer, "heads", None)),
        (run.experts, experts.experts),
        (run.topk, experts.chosen),
        (run.moe_ffn, experts.inner),
        (shared, experts.shared_inner),
    )
    return model if all(value in (None, own) for value, own in stated) else None


def _with_run(model: Model, run: Run, tp: int, framework: Framework, assumed: dict[str, str]) -> Model:
    """A known mixture of experts as a measured run trains it: with its vocabulary padded, and with the layers that predict
    further tokens. Arguments as of `mixture_model`."""
    size = -(-(run.vocab or model.vocabulary) // (framework.pads * tp)) * framework.pads * tp
    if size != run.vocab:
        assumed["vocab"] = f"{size}, padded"
    units = [
        replace(unit, sublayer=replace(unit.sublayer, vocabulary=size))
        if isinstance(unit.sublayer, TokenEmbedding | LanguageHead)
        else unit
        for unit in model.units
    ]
    if run.seq is None:
        assumed["seq"] = str(model.tokens)
    last = [unit.sublayer for unit in units if unit.layer == model.layers]
    return replace(model, units=(*units[:-1], *_ends(run, last[0], last[-1], units[-1], model.layers)))


def _ends(run: Run, mixer: Sublayer, network: Sublayer, head: Unit, layers: int) -> list[Unit]:
    """The units after the layers of a run's model: the modules that predict further tokens, each a join, a layer and a norm,
    and the head, which has a set of logits more for each. mixer, network: the two sub-layers of a module's layer. head: the
    head. layers: the number of layers."""
    last = head.sublayer
    count = "".join(layouts.parsed(layout_string(run) or "")).count("m") if run.mtp is None else run.mtp
    if not isinstance(last, LanguageHead) or not count:
        return [head]
    common: dict[str, Any] = {name: getattr(last, name) for name in ("tokens", "hidden", "dtype", "norm", "norm_bias")}
    units = list[Unit]()
    for index in range(layers + 1, layers + 1 + count):
        parts = (TokenJoin(**common), mixer, network, Norm(**common))
        units += [Unit(f"layer{index}.{part.kind}", index, part) for part in parts]
    return [*units, replace(head, layer=layers + count + 1, sublayer=replace(last, predictions=count))]


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
        if (listed := pattern(stated, layers)) is None:
            problem = f"is {stated!r}, no list of as many layers as layers says, {layers}"
            raise InputError(run.id, "moe_layer_freq", problem, f"give a list of {layers}, such as ([0]*1+[1]*{layers - 1})")
        return listed
    every = int(stated or 1)
    return tuple(index % every == 0 and index >= (run.dense_first or 0) for index in range(layers))


def experts_layout(run: Run, model: Model, group: int, tp: int, framework: Framework, assumed: dict[str, str]) -> ExpertsLayout:
    """The layout of a measured run's units of experts.

    group: the number of devices of a pipeline stage. tp: tensor-parallel degree. framework: the cost model's settings for the
    run's framework. assumed: assumptions as texts by name, written to: gets an entry for each field that the run does not
    specify. Raises InputError for degrees that do not divide the experts, their width or the devices.
    """
    graphs = graphs_of(run, framework, assumed)
    ep, etp, note = run.ep or 1, run.etp, (run.note or "").lower()
    if etp is None:  # Megatron-Core's default is tp (`expert_tensor_parallel_size`); other runtimes divide no expert
        etp = tp if framework.pads > 1 and group % (tp * ep) == 0 else 1
        assumed["etp"] = str(etp)
    expert_data_degree(group, ep, etp, run.id)
    units = [part for part in model.sublayers.values() if isinstance(part, Experts)]
    for part in units:
        check_folded(part.experts, part.inner, ep, etp, run.id)
    most = max((part.experts for part in units), default=0)
    return ExpertsLayout(
        ep=ep,
        etp=etp,
        dispatcher=dispatcher_of(run, framework, assumed),
        dispatched_bytes=1.0 if flag(note, DISPATCHED_IN_BITS) else None,
        imbalance=imbalance_of(run, assumed),
        capacity=run.capacity_factor,
        padded=bool(run.pad_to_capacity),
        grouped=run.grouped_gemm is not False,
        shared_alongside=bool(flag(note, r"moe[_ -]shared[_ -]expert[_ -]overlap")),
        exchange_alongside=runs_alongside(run, assumed),
        fused="full_iteration" in graphs and framework.name == BRIDGE.name,
        issue_ns=issue_ns(run, graphs, most / ep),
    )
