"""The recomputation that the words of a run state: none, whole layers, some of them, or named modules.

Words are matched from the most to the least specific: counted layers, modules by name, then words that only say that there is
some.
"""

from __future__ import annotations

import re

from trainplan.formulations.costs.overlapped.layout import RecomputePolicy
from trainplan.validation.rows import Run
from trainplan.validation.words import SEQUENCE, Assumed, denied, unknown

ORDINALS = {"other": 2, "second": 2, "two": 2, "third": 3, "three": 3, "fourth": 4, "four": 4}
EVERY = re.compile(rf"every (\d+|{'|'.join(ORDINALS)})")
ALTERNATE = re.compile(r"\balternat\w+|\bhalf (of )?(the |all )?layers|\bevery half")
FRACTION = re.compile(r"(?<![\d./])(\d+) ?(?:/|of|out of) ?(\d+)(?![\d./])")
BUDGET = re.compile(r"budget\D{0,3}(0?\.\d+|[01]\b)")
PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
OPERATIONS = re.compile(r"\bop\b|selective[_ -]op|sel[_ -]op|per[_ -]op|\bsac\b|op[_ -]level")
SAVED_PRODUCTS = re.compile(r"minimal|save[_ -]?dots?|dots[_ -]saveable|save[_ -]?matmul")
SAVED_ATTENTION = re.compile(r"save[_ -]qkvo?")  # AXLearn's word for keeping the products of attention
ACTIVATION = re.compile(
    r"\b(mlp|ffn)[ _-]*act(ivation)?\b|gelu|swiglu|silu"
    r"|\bact(ivation)?([ _-]*(fn|func\w*))?\b(?![ _-]*(re)?(check|comp|ckpt|mat))"
)
EXPERTS_ACTIVATION = re.compile(r"\bmoe[ _-]*act(ivation)?\b")
CHECKPOINTS = re.compile(r"checkpoint|recompute|remat|ckpt|\bac\b|\bgc\b|unsloth")
SECOND_LAYERS = "every second layer, as torchtitan has it unless it is told otherwise"
WHOLE = re.compile(r"full|block|uniform|\ball\b|(every|each|per)[_ -]layer|layer[_ -]?wise|whole")
YES = re.compile(r"\s*(yes|true|on|enabled?|y|1)\b.*|.*[a-z ._-][=: ] *(yes|true|on|enabled?|1)\s*")
NOTED = re.compile(  # in a note, where the row's own field is empty
    r"\b(?:(?:no|without|w/o|full|selective)[ _-]+)?(?:activation|gradient)[ _-]*(?:checkpointing|re-?comput\w+)\b"
    r"|\b(?:no|without|w/o|full|selective)[ _-]+(?:re-?comput\w+|checkpointing)\b"
)
# Words about data on the host, which do not concern recomputation.
OFFLOADED = re.compile(
    r"\b((act|activation|cpu|host|optimizer|param(eter)?)s?[ _-]+)*(off[ _-]?load\w*)([ _-]+(of[ _-]+)?activations?)?\b"
)


def recompute_of_words(run: Run, assumed: Assumed) -> RecomputePolicy:
    """Read which recomputation a measured run states, in its own field or else in its note (free text); if it states none,
    there is none, or, in torchtitan, every second layer is recomputed.

    `block 10`, `first-10` and `full(10 layers)` mean the first ten layers of every pipeline stage (of every chunk if stages are
    interleaved), as in Megatron-LM; `uniform 4` means all layers, recomputed in groups of four. assumed: assumptions as texts
    by name, written to: the entry `recompute` is set if the run states no recomputation, states a memory budget, or has words
    that leave open which layers or modules are recomputed. Raises InputError for unknown words.
    """
    torchtitan = "torchtitan" in (run.framework or "").lower()
    stated = run.recompute
    if stated is None and (noted := NOTED.search((run.note or "").lower())):
        stated = noted[0]
    if stated is None:
        assumed["recompute"] = SECOND_LAYERS if torchtitan else "none"
        return RecomputePolicy(layers=0.5 if torchtitan else 0.0)
    words = OFFLOADED.sub("", SEQUENCE.sub("", stated.lower())).strip(" +,;")
    if denied(words):
        return RecomputePolicy()
    if (layers := _share_of_layers(words, assumed)) is not None:
        return RecomputePolicy(layers=layers)
    if OPERATIONS.search(words):
        return RecomputePolicy(operations=True)
    if SAVED_PRODUCTS.search(words):
        return RecomputePolicy(attention=True, norms=True, activation=True)
    if SAVED_ATTENTION.search(words):
        return RecomputePolicy(attention=True, norms=True, network=True)
    if share := PERCENT.search(words):
        return RecomputePolicy(layers=min(1.0, float(share[1]) / 100))
    counted = re.search(r"\b(?:block|first)\D*?(\d+)", words) or ("layer" in words and re.search(r"(\d+)", words))
    named = _named_modules(words)
    if named is not None and counted and not WHOLE.search(words) and "first" not in words:
        assumed["recompute"] = f"these modules in all layers, and {counted[0]!r} stated"
        return named
    if counted and "uniform" not in words:
        return RecomputePolicy(first=int(counted[1]))
    if grouped := re.search(r"\buniform\D{0,16}(\d{1,4})\b", words):
        return RecomputePolicy(layers=1.0, group=max(1, int(grouped[1])))
    if WHOLE.search(words) and (named is None or "(" not in words):
        return RecomputePolicy(layers=1.0)
    return _unnamed(run, words, torchtitan, assumed) if named is None else named


def _share_of_layers(words: str, assumed: Assumed) -> float | None:
    """The share of layers that are recomputed, from 0 to 1, as a text states it: `every 2nd` -> 0.5, `every other layer`, `1/3
    of layers`, `1 of 4`, or torch.compile's memory budget, which is the share that is kept. None if the text states no share.
    words: the text, as the run states it. assumed: assumptions as texts by name, written to: gets an entry for a memory
    budget.
    """
    if every := EVERY.search(words):
        return 1 / max(1, ORDINALS.get(every[1]) or int(every[1]))
    if ALTERNATE.search(words):
        return 0.5
    if (share := FRACTION.search(words)) and 0 < int(share[2]) >= int(share[1]):
        return int(share[1]) / int(share[2])
    if budget := BUDGET.search(words):
        layers = 1 - min(1.0, float(budget[1]))
        assumed["recompute"] = f"whole layers, {layers:.0%} of them, for a memory budget of {budget[1]}"
        return layers
    return None


def _named_modules(words: str) -> RecomputePolicy | None:
    """The recomputation policy for the modules that a text names (those in brackets if it has brackets): `mlp` is the
    feed-forward network, `act` or `mlp_act` its activation function; `moe`, `moe_act`, `shared_experts` and `mla_up_proj` are
    Megatron-Core's. None if the text names no module. words: the text, as the
    run states it.
    """
    bracketed = re.search(r"\((.*)\)", words)
    text = bracketed[1] if bracketed else words
    own = EXPERTS_ACTIVATION.sub("", text)
    network = ACTIVATION.sub("", own)
    named = RecomputePolicy(
        attention=re.search(r"att|core|\bsdpa\b", text) is not None,
        norms=re.search(r"norm|\bln\b", text) is not None,
        activation=network != own,
        network=re.search(r"mlp|ffn|feed[ _-]?forward", network) is not None,
        experts=re.search(r"\bmoe\b", network) is not None,
        experts_activation=own != text,
        shared_experts=re.search(r"shared[ _-]experts?", network) is not None,
        latent=re.search(r"mla[ _-]up[ _-]?proj|\bmla\b", text) is not None,
        loss=re.search(r"\bloss\b|cross[ _-]?entropy", text) is not None,
    )
    return None if named == RecomputePolicy() else named


def _unnamed(run: Run, words: str, torchtitan: bool, assumed: Assumed) -> RecomputePolicy:
    """The recomputation policy for words that state no more than that there is recomputation, which then means all layers, or
    only `selective` or `partial`, which means attention's core, or, in torchtitan, every second layer. Raises InputError for
    words that do not even state that.

    run: a measured run. words: its words on recomputation in lower case. torchtitan: whether the framework is torchtitan.
    assumed: assumptions as texts by name, written to: the entry `recompute` is set for `partial`, and for `selective` in
    torchtitan.
    """
    partial = re.search(r"partial", words) is not None
    if "selective" in words or partial:
        if torchtitan:
            assumed["recompute"] = SECOND_LAYERS
            return RecomputePolicy(layers=0.5)
        if partial:
            assumed["recompute"] = f"selective: {words!r} does not say of what"
        return RecomputePolicy(attention=True)
    if YES.fullmatch(words) or CHECKPOINTS.search(words):
        return RecomputePolicy(layers=1.0)
    raise unknown(run, "recompute", "none, full, selective, the modules' names, or layers such as `every 2nd` or `block 10`")
