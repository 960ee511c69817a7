"""What the words of a row mean: how states are shared, in which precision, who shares the tokens, and what context-parallel
ranks exchange; `recomputation` reads what is computed again.

Tables of published runs write one thing in many words. Each function reads the words that are in use, negations among them,
and refuses a row of a word that it does not know: it would be of another run.
"""

from __future__ import annotations

import re
from math import gcd, prod

from trainplan.formulations.costs.overlapped.layout import Framework, RunSchedule
from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.recipes import RECIPES, Recipe
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.validation.rows import Run

Assumed = dict[str, str]
NEVER = re.compile(r"\s*(none\b.*|no\b.*|not\b.*|without\b.*|false|off|disabled?|n/?a|nil|null|-+|0|)\s*")
OFF = re.compile(r"[a-z ._-]+[=: ] *(false|off|disabled|none|no)\s*|.*\bw/o\b.*|.*\bwithout\b.*")  # behind what it is of
# Words of how states are shared, and the ZeRO stage that they mean, the first that fits.
STAGES = (
    (r"no[_ -]?shard|\bddp\b(?!.*fsdp)", 0),
    (r"optim[_ -]?grads[_ -]?params|full[_ -]?shard", 3),
    (r"zero[_ -]?(?:stage[_ -]?)?3|stage[_ -]?3|zero[_ -]?infinity|\bp?os ?\+ ?g ?\+ ?p\b", 3),
    (r"zero[_ -]?(?:stage[_ -]?)?2|stage[_ -]?2|grad[_ -]?op|optim[_ -]?grads|\bp?os ?\+ ?g\b", 2),
    (r"zero[_ -]?(?:stage[_ -]?)?1|stage[_ -]?1|dist(?:ributed)?[_ -]?optim|\boptim\b|sharded[_ -]?optim|\bpos\b", 1),
    (r"fsdp|hsdp|hybrid|shard|^(true|yes|on)$", 3),
)
# Of names that say no stage, the one that they mean where nothing else says it.
UNSTAGED = ((r"zero[_ -]?off[_ -]?load", 2), (r"zero", 3))
SHARDED = re.compile(r"(?:fsdp|hsdp)[ _-]?[12]?")  # words that say no stage
NO_FSDP = re.compile(r"\b(?:no|not|without|w/o|non)[ _-]+(?:fsdp|zero|shard\w*)")
VERSIONS = re.compile(r"fsdp[ _-]?[12]\b|zero[ _-]?(?:stage[ _-]?)?[123]\b|stage[ _-]?[123]\b")  # numbers that count no ranks
SEQUENCE = re.compile(r"sequence[ _-]?parallel\w*")
NOT_SEQUENCE = re.compile(
    r"\b(no|not|without|w/o|non)[ _-]+sequence[ _-]?parallel|sequence[ _-]?parallel\w*\s*[=:]?\s*(false|off|no|0)\b"
)


FUNCTIONAL_TEST = "transformer-impl"  # a flag that notes of Megatron-LM's functional tests have
HEADS = r"(?:(?:deepspeed[ _-]?)?ulysses(?:[ _-]?sp)?|(?:cp[ _-]comm[ _-]type[ =:]*)?(?:a2a|all[ _-]?to[ _-]?all))"
KEYS = re.compile(r"\bring\b|\bp2p\b")
GATHERED = re.compile(
    r"cp[ _-]comm[ _-]type[ =:]*all[ _-]?gather|all[ _-]?gather(?:s|ed|ing)? (?:of )?(?:kv|keys)|kv all[ _-]?gather"
)
EXCHANGING_HEADS = "DeepSpeed"  # the framework that does so where a row does not say
SHARD = "shard"  # the name of what is assumed of how many ranks share states
NODE = 8  # devices of a node, whose ranks share states in hybrid sharding
EXCHANGED = "context parallelism"  # the name of what is assumed of it
BOTH = re.compile(r"\ba2a\s*\+\s*p2p\b|\busp\b")


MUON = r"(?:dist[_ -]?)?muon(?:clip|w)?"


def flag(note: str, name: str) -> bool | None:
    """Whether a note says that a flag is on; None where it does not speak of it."""
    said = re.search(rf"\b(no |not |non-|without |w/o )?(?:--)?{name}\b\s*[=:]?\s*(false|off|disabled|no|0)?\b", note)
    return None if said is None else not (said[1] or said[2])


def optimizer_of(run: Run) -> OptimizerName:
    """What a row's note says that steps the parameters: AdamW, unless it names Muon."""
    return "muon" if flag((run.note or "").lower(), MUON) else "adamw"


FEW_BITS = re.compile(r"fp8|float8|fp4|float4|e4m3|e5m2")
PRECISIONS = re.compile(
    rf"bf16|bfloat16|fp16|float16|half|\bo[0-3]\b|fp32|tf|float32|single|16|32|mixed|amp|{FEW_BITS.pattern}"
)
OTHER_PRECISIONS = re.compile(r"\bint ?\d+|fp64|float64|double|fp6\b|posit|\bw\da\d")  # in which nothing here is trained
HALVES = re.compile(r"bf(?:loat)?16|(?<!b)(?:fp|float)16")
# Words of recipes of 8 bits, the first that fits: names of Megatron-LM, Transformer Engine and torchao, and of NVIDIA's tables.
SCALINGS = (
    (r"mx[_ -]?fp8|fp8[_ -]?mx\b|micro[_ -]?scal", "mxfp8"),
    (r"block[_ -]?(?:wise|scal)|sub[_ -]?channel|fp8[_ -]s[cs]\b|128 ?x ?128", "fp8-blockwise"),
    (r"current[_ -]?scal|fp8[_ -]c(?:s|urrent)\b|(?:tensor|row)[_ -]?wise|dynamic[_ -]?scal", "fp8-current"),
    (r"delayed|fp8[_ -]ds\b", "fp8"),
)


def unknown(run: Run, field: str, known: str) -> InputError:
    """Of a word that nobody knows, without which the row would be of another run."""
    return InputError(run.id, field, f"is {getattr(run, field)!r}, which is no word that is known", f"give {known}")


def denied(words: str) -> bool:
    """Whether words say that there is none: `no`, `n/a`, `none(by recipe)`, `gradient checkpointing: off`."""
    return NEVER.fullmatch(words) is not None or OFF.fullmatch(words) is not None


def precisions(words: str, usual: Precision) -> tuple[Precision, Precision]:
    """The base dtype, and that of the products of layers where no recipe has them in fewer bits. usual: the base where none is
    named, as in `mixed precision`."""
    text, base = words.lower(), usual
    if re.search(r"bf16|bfloat16", text):
        base = "bfloat16"
    elif re.search(r"fp16|float16|half|\bo[12]\b|\b16\b", text):  # O1, O2: of apex
        base = "float16"
    elif re.search(r"fp32|float32|tf32|tfloat32|single|\b32\b", text) and not re.search(
        rf"16|{FEW_BITS.pattern}|mixed|amp", text
    ):
        return "float32", "tfloat32" if "tf" in text else "float32"
    return base, base


def recipe_of_words(run: Run, assumed: Assumed) -> Recipe | None:
    """The recipe of the products of layers in 8 or 4 bits, by the words of a row's precision, then of its note; None where its
    precision speaks of none. FP8 alone is taken for FP8 per tensor, with delayed scaling, or in torchtitan, which has none,
    with current scaling; FP4 of whatever kind for NVFP4."""
    words, note = (run.precision or "").lower(), (run.note or "").lower()
    if not FEW_BITS.search(words):
        return None
    if re.search(r"fp4|float4", words):
        if not re.search(r"nv[_ -]?fp4", words):
            assumed["recipe"] = f"nvfp4: {RECIPES['nvfp4'].about}"
        return RECIPES["nvfp4"]
    for text in (words, note):
        for pattern, name in SCALINGS:
            if re.search(pattern, text):
                return RECIPES[name]
    recipe = RECIPES["fp8-current" if "torchtitan" in (run.framework or "").lower() else "fp8"]
    assumed["recipe"] = f"{recipe.name}: {recipe.about}"
    return recipe


def stage_said(run: Run) -> int:
    """ZeRO's stage that a row says, as a number or in words; 0 where it says none."""
    words = (run.fsdp or "no").lower()
    said = None if denied(words) else next((meant for pattern, meant in STAGES if re.search(pattern, words)), None)
    return max(run.zero or 0, said or 0)


def sharing(run: Run, dp: int, framework: Framework, assumed: Assumed) -> tuple[int, int]:
    """The ZeRO stage, and the data-parallel ranks that share states."""
    words, note, name = ((text or "").lower() for text in (run.fsdp or "no", run.note, run.framework))
    if "ddp" in words:
        words = NO_FSDP.sub("", words)
    elif denied(words) and "fsdp" not in name and (flag(name, "ddp") or flag(note, "ddp")):
        words = "ddp"
    stage, said = run.zero, None
    if not denied(words) or "ddp" in words:
        said = next((meant for pattern, meant in STAGES if re.search(pattern, words)), None)
        if said == 3 and "torchtitan" in name and (run.pp or 1) > 1 and SHARDED.fullmatch(words):
            said = 2 if stage is None else stage  # which gathers parameters once a step there, unless it is told otherwise
        if said is None and (meant := [meant for pattern, meant in UNSTAGED if re.search(pattern, words)]):
            said = meant[0] if stage is None else stage
        if said is None:
            raise unknown(run, "fsdp", "no, DDP, ZeRO-1, ZeRO-2, full_shard, FSDP2 or HSDP")
    if said is not None:
        stage = said if stage is None or "optim_grads_params" in words else max(stage, said)
    if stage is None and re.search(r"\bdist[_ -]?muon", note):
        stage = 1
    if stage is None:
        sharded = (framework.name.startswith("PyTorch FSDP") and name) or "fsdp" in name
        stage = 3 if sharded else int(framework.name == "NeMo")
        assumed["zero"] = str(stage)
    if stage == 1 and framework.name.startswith("PyTorch FSDP") and re.search("fsdp|torchtitan", name):
        fix = "give zero 2 or 3, 0 for copies, or the framework that has ZeRO-1"
        raise InputError(run.id, "zero" if run.zero else "fsdp", "is of ZeRO's stage 1, which PyTorch FSDP does not have", fix)
    if stage > 1 and (run.pp or 1) > 1 and re.search("deepspeed|neox", name or note or ""):
        fix = "give zero 0 or 1, or pp 1: DeepSpeed's pipelines refuse ZeRO's stages 2 and 3"
        raise InputError(run.id, "zero" if run.zero else "fsdp", f"is of ZeRO's stage {stage}, with pp {run.pp}", fix)
    shard = _shard(words, note, dp)
    if shard is None:
        shard = min(dp, NODE)
        assumed[SHARD] = f"{shard} ranks share states: {run.fsdp!r} without sizes, taken for within nodes"
    if dp % shard:
        assumed[SHARD] = f"all {dp} ranks share states: {shard} do not divide them"
        shard = dp
    return stage, shard


def _shard(words: str, note: str, dp: int) -> int | None:
    """The ranks that share states, of so many data-parallel ones; None of hybrid sharding that says no size."""
    if size := re.search(r"shard group (?:size )?(\d+)", note):
        return int(size[1])
    if size := re.search(r"(?<!no_)(?<!full_)shard(?:ed|ing)?[ _=:-]*(\d+)", words):
        return int(size[1])
    if sizes := re.search(r"(\d+)\s*x\s*(?:fsdp)?\s*(\d+)", words):  # copies times shards
        return int(sizes[2])
    if re.search(r"hsdp|hybrid", words):
        size = re.search(r"(\d+)", VERSIONS.sub("", words))
        return int(size[1]) if size else None
    size = re.search(r"fsdp[ _-]?(\d+)", words)
    return int(size[1]) if size and int(size[1]) > 2 else dp  # FSDP1 and FSDP2 are its versions


def shares_tokens(run: Run, tp: int, framework: Framework, assumed: Assumed) -> bool:
    """Sequence parallelism: as the row says, else as recipes have it; Megatron-LM of 2022 where it recomputes selectively."""
    text = f"{run.recompute or ''} {run.note or ''}".lower()
    if tp == 1:
        return False
    if SEQUENCE.search(text):
        return NOT_SEQUENCE.search(text) is None
    shared = framework.fused_attention and FUNCTIONAL_TEST not in text
    assumed["sequence parallelism"] = "on" if shared else "off"
    return shared


def exchange(run: Run, framework: Framework, assumed: Assumed) -> Exchange:
    """What context-parallel ranks exchange: as the note or the framework's name says, else as the framework does. Raises
    InputError where it is both at once, in groups."""
    text = f"{run.framework or ''} {run.note or ''}".lower()
    if BOTH.search(text):
        fix = "give a2a or p2p: rings of groups that exchange heads are not predicted"
        raise InputError(run.id, "note", "has context parallelism of both kinds at once", fix)
    if (heads := flag(text, HEADS)) is not None:
        return "heads" if heads else "keys"
    if GATHERED.search(text):
        assumed[EXCHANGED] = "keys and values are sent around a ring during attention, not gathered before it"
    elif not KEYS.search(text):
        assumed[EXCHANGED] = "exchanges heads" if framework.name == EXCHANGING_HEADS else "exchanges keys"
        return "heads" if framework.name == EXCHANGING_HEADS else "keys"
    return "keys"


GIGABITS = r"(\d+)[ -]?G(?:b(?:it)?(?:ps|/s|E)?|igabit(?:/s)?|bE)?"
NODE_RATE = re.compile(  # of all devices of a node, in gigabits each second
    rf"\b{GIGABITS}[ -](?:TCP|Ethernet|network|NIC per node)|\b(\d+) ?GbE\b"
    rf"|\b(?:one|single|1) {GIGABITS} \S*\s?(?:NIC|port|HCA)"
    rf"|\b{GIGABITS}[ -](?:\w+ )?(?:per|a|each) node",
    re.IGNORECASE,
)


def network_bytes_per_s(run: Run) -> float | None:
    """A device's share of the network, of what a note says of a node's ports; None where it says nothing."""
    note = run.note or ""
    if ports := re.search(r"(\d+)\s*x\s*(\d+)\s*Gb", note):
        return int(ports[1]) * int(ports[2]) * 1e9 / 8 / 8
    if whole := re.search(r"(\d+)\s*Gbps (?:node-node|per node|a node|EFA)|EFA (\d+)\s*Gbps", note):
        return int(whole[1] or whole[2]) * 1e9 / 8 / 8
    if whole := NODE_RATE.search(note):
        return int(next(filter(None, whole.groups()))) * 1e9 / 8 / 8
    if whole := re.search(r"(\d+(?:\.\d+)?)\s*Tbps", note):
        return float(whole[1]) * 1e12 / 8 / 8
    return None


# The order of a pipeline's passes, by words of notes and frameworks.
SCHEDULES: tuple[tuple[str, RunSchedule], ...] = (
    (r"\bgpipe\b|\bafab\b|all[ _-]forward[ _-]all[ _-]backward", "gpipe"),
    (r"\bzb[ _-]?h1\b", "zb-h1"),
    (r"\bzb[ _-]?(?:v|h2|[12]p)\w*|zero[ _-]?bubble|dual[ _-]?pipe\w*", "zero-bubble"),
)
OTHER_SCHEDULES = re.compile(r"\bv[ _-](?:half|min)\b|chimera|hanayo|pipedream|terapipe|\bbitpipe|\bloop\w*[ _-]bfs")


def schedule_of(run: Run, assumed: Assumed) -> RunSchedule:
    """The order of a pipeline's passes: 1F1B, interleaved or not, unless the row names another."""
    text = f"{run.note or ''} {run.framework or ''}".lower()
    for pattern, schedule in SCHEDULES:
        if flag(text, f"(?:{pattern})"):
            if schedule != "gpipe":
                assumed["schedule"] = f"{schedule}: activations and copies of parameters as under 1F1B"
            return schedule
    if other := OTHER_SCHEDULES.search(text):
        assumed["schedule"] = f"1f1b, for {other[0]!r}"
    return "1f1b"


def stages_of_devices(run: Run, pp: int, layers: int) -> int:
    """Stages of each device where a row does not count them: two where it says that they are interleaved and layers suffice."""
    text = f"{run.note or ''} {run.framework or ''}".lower()
    return (
        2
        if pp > 1
        and layers >= 2 * pp
        and flag(text, r"(?<!rotary[-_ ])interleaved?(?:[ _-]?1f1b|[ _-]pipeline|[ _-]schedule)?")
        else 1
    )


def degrees(run: Run) -> dict[str, int | None]:
    """The degrees tp, pp and cp of a row; where dp is said, one that is not follows from the others, and of several tp first,
    up to a node."""
    said = {name: getattr(run, name) for name in ("tp", "pp", "cp")}
    open_ones = [name for name, degree in said.items() if degree is None]
    left, rest = divmod(run.gpus, (run.dp or 1) * prod(degree or 1 for degree in said.values()))
    if run.dp is None or rest or left == 1 or not open_ones:
        return said
    first = gcd(left, 8) if open_ones[:2] == ["tp", "pp"] else left
    said[open_ones[0]] = first
    if len(open_ones) > 1:
        said[open_ones[1]] = left // first
    return said
