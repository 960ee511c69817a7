"""The meaning of a run's words: how states are sharded, in which precision, whether tensor-parallel ranks share tokens, and
what context-parallel ranks exchange; `recomputation` reads those on recomputation.

Tables of published runs write one thing in many words. Each function reads the words that are in use, negations among them, and
refuses a run with an unknown word, since without it another run would be predicted.
"""

from __future__ import annotations

import re
from math import gcd, prod

from trainplan.formulations.costs.overlapped.layout import Framework, RunSchedule
from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.recipes import RECIPES, Recipe
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName
from trainplan.validation.rows import Run

Assumed = dict[str, str]
NEVER = re.compile(r"\s*(none\b.*|no\b.*|not\b.*|without\b.*|false|off|disabled?|n/?a|nil|null|-+|0|)\s*")
OFF = re.compile(
    r"[a-z ._-]+[=: ] *(false|off|disabled|none|no)\s*|.*\bw/o\b.*|.*\bwithout\b.*"
)  # negations that follow a noun
# Patterns of words on sharded states, each with the ZeRO stage that it means; the first that matches counts.
STAGES = (
    (r"no[_ -]?shard|\bddp\b(?!.*fsdp)", 0),
    (r"optim[_ -]?grads[_ -]?params|full[_ -]?shard", 3),
    (r"zero[_ -]?(?:stage[_ -]?)?3|stage[_ -]?3|zero[_ -]?infinity|\bp?os ?\+ ?g ?\+ ?p\b", 3),
    (r"zero[_ -]?(?:stage[_ -]?)?2|stage[_ -]?2|grad[_ -]?op|optim[_ -]?grads|\bp?os ?\+ ?g\b", 2),
    (r"zero[_ -]?(?:stage[_ -]?)?1|stage[_ -]?1|dist(?:ributed)?[_ -]?optim|\boptim\b|sharded[_ -]?optim|\bpos\b", 1),
    (r"fsdp|hsdp|hybrid|shard|^(true|yes|on)$", 3),
)
# Patterns of words without a stage, each with the stage that is meant where nothing else states it.
UNSTAGED = ((r"zero[_ -]?off[_ -]?load", 2), (r"zero", 3))
SHARDED = re.compile(r"(?:fsdp|hsdp)[ _-]?[12]?")  # words without a stage
NO_FSDP = re.compile(r"\b(?:no|not|without|w/o|non)[ _-]+(?:fsdp|zero|shard\w*)")
VERSIONS = re.compile(r"fsdp[ _-]?[12]\b|zero[ _-]?(?:stage[ _-]?)?[123]\b|stage[ _-]?[123]\b")  # numbers that are not ranks
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
EXCHANGING_HEADS = "DeepSpeed"  # the framework whose context-parallel ranks exchange heads unless a row states otherwise
SHARD = "shard"  # the name of the assumption on the number of ranks that share states
SHARD_GROUP = r"shard group (?:size )?(\d+)"  # how many ranks share one copy of the states
NODE = 8  # devices of a node, whose ranks share states in hybrid sharding
EXCHANGED = "context parallelism"  # the name of the assumption on what its ranks exchange
BOTH = re.compile(r"\ba2a\s*\+\s*p2p\b|\busp\b")


def flag(note: str, name: str) -> bool | None:
    """Whether a note (free text in lower case) states that a flag is on: True if it does, False if it negates the flag, None
    if it does not mention it. name: a regular expression for the flag's name.
    """
    match = re.search(rf"\b(no |not |non-|without |w/o )?(?:--)?{name}\b\s*[=:]?\s*(false|off|disabled|no|0)?\b", note)
    return None if match is None else not (match[1] or match[2])


def optimizer_of(run: Run) -> OptimizerName:
    """The optimizer of a measured run: Muon if its note (free text) names it, else AdamW."""
    note = (run.note or "").lower()
    return next((name for name, spec in OPTIMIZERS.items() if spec.noted and flag(note, spec.noted)), "adamw")


FEW_BITS = re.compile(r"fp8|float8|fp4|float4|e4m3|e5m2")
PRECISIONS = re.compile(
    rf"bf16|bfloat16|fp16|float16|half|\bo[0-3]\b|fp32|tf|float32|single|16|32|mixed|amp|{FEW_BITS.pattern}"
)
CURRENT_SCALING = re.compile(r"torchtitan|megatron[ _-]?bridge")  # frameworks whose FP8 is by current scaling
OTHER_PRECISIONS = re.compile(r"\bint ?\d+|fp64|float64|double|fp6\b|posit|\bw\da\d")  # precisions that are not predicted
HALVES = re.compile(r"bf(?:loat)?16|(?<!b)(?:fp|float)16")
# Patterns of 8-bit recipes, the first match counts: names of Megatron-LM, Transformer Engine, torchao and NVIDIA's tables.
SCALINGS = (
    (r"mx[_ -]?fp8|fp8[_ -]?mx\b|micro[_ -]?scal", "mxfp8"),
    (r"block[_ -]?(?:wise|scal)|sub[_ -]?channel|fp8[_ -]s[cs]\b|128 ?x ?128", "fp8-blockwise"),
    (r"current[_ -]?scal|fp8[_ -]c(?:s|urrent)\b|(?:tensor|row)[_ -]?wise|dynamic[_ -]?scal", "fp8-current"),
    (r"delayed|fp8[_ -]ds\b", "fp8"),
)


def unknown(run: Run, field: str, known: str) -> InputError:
    """Build the error for an unknown word in a field of a measured run, which cannot be ignored, because the prediction would
    be of a different run. field: the field's name. known: words that are allowed.
    """
    return InputError(run.id, field, f"is {getattr(run, field)!r}, which is no word that is known", f"give {known}")


def denied(words: str) -> bool:
    """Whether a text means that something is off, such as `no`, `n/a`, `none(by recipe)` or `gradient checkpointing: off`.
    words: the text, as the run states it.
    """
    return NEVER.fullmatch(words) is not None or OFF.fullmatch(words) is not None


def precisions(words: str, usual: Precision) -> tuple[Precision, Precision]:
    """Read a measured run's words on precision, such as "bf16 mixed". Returns the base dtype, and the dtype of the layers'
    matrix multiplications, which a low-precision recipe (such as mxfp8) may replace later. usual: the base dtype if the words
    name none, as in `mixed precision`.
    """
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
    """The 8- or 4-bit recipe (such as mxfp8) of the layers' matrix multiplications that a measured run names, in its precision
    or, in more detail, in its note. None if its precision names none.

    Plain FP8 means FP8 per tensor with delayed scaling, or with current scaling in torchtitan, which does not have the other,
    and in Megatron-Bridge, whose recipes of that name have it; any FP4 means NVFP4. assumed: assumptions as texts by name,
    written to: gets an entry if the recipe follows from such a rule.
    """
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
    recipe = RECIPES["fp8-current" if CURRENT_SCALING.search((run.framework or "").lower()) else "fp8"]
    assumed["recipe"] = f"{recipe.name}: {recipe.about}"
    return recipe


def stated_stage(run: Run) -> int:
    """The ZeRO stage that a measured run states, as a number or in words; 0 if it states none."""
    words = (run.fsdp or "no").lower()
    stage = None if denied(words) else next((meant for pattern, meant in STAGES if re.search(pattern, words)), None)
    return max(run.zero or 0, stage or 0)


def sharing(run: Run, dp: int, framework: Framework, assumed: Assumed) -> tuple[int, int]:
    """How a measured run shards its model states. Returns the ZeRO stage, and the number of data-parallel ranks over which
    states are sharded. Raises InputError for unknown words, and for stages that the framework does not have.

    dp: number of data-parallel ranks. framework: the cost model's settings for the run's framework. assumed: assumptions as
    texts by name, written to: gets an entry for a stage or number that the run does not specify.
    """
    words, note, name = ((text or "").lower() for text in (run.fsdp or "no", run.note, run.framework))
    if "ddp" in words:
        words = NO_FSDP.sub("", words)
    elif denied(words) and "fsdp" not in name and (flag(name, "ddp") or flag(note, "ddp")):
        words = "ddp"
    if run.megatron_fsdp and framework.pads == 1:
        fix = "leave it out, or give a framework of Megatron"
        raise InputError(run.id, "megatron_fsdp", f"is true, and the framework is {run.framework or framework.name}", fix)
    stage = _stage(run, words, note, framework, assumed)
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


def _stage(run: Run, words: str, note: str, framework: Framework, assumed: Assumed) -> int:
    """The ZeRO stage of a measured run: the larger one of the number that it states and the stage that its words mean; if it
    has neither, the framework's usual stage. Raises InputError for unknown words.

    words: the run's words on sharding in lower case. note: its note (free text) in lower case. framework: the cost model's
    settings for its framework. assumed: assumptions as texts by name, written to: gets an entry if the framework's usual
    stage is used.
    """
    name, stage, stated = (run.framework or "").lower(), run.zero, None
    if not denied(words) or "ddp" in words:
        stated = next((meant for pattern, meant in STAGES if re.search(pattern, words)), None)
        if stated == 3 and "torchtitan" in name and (run.pp or 1) > 1 and SHARDED.fullmatch(words):
            stated = (
                2 if stage is None else stage
            )  # with pipelines it gathers parameters once a step, unless configured otherwise
        if stated is None and (meant := [meant for pattern, meant in UNSTAGED if re.search(pattern, words)]):
            stated = meant[0] if stage is None else stage
        if stated is None:
            raise unknown(run, "fsdp", "no, DDP, ZeRO-1, ZeRO-2, full_shard, FSDP2 or HSDP")
    if stated is not None:
        stage = stated if stage is None or "optim_grads_params" in words else max(stage, stated)
    if stage is None and re.search(r"\bdist[_ -]?muon", note):
        stage = 1
    if stage is None and run.megatron_fsdp:
        stage, assumed["zero"] = 3, "3, optim_grads_params of Megatron-FSDP"
    if stage is None:
        sharded = (framework.name.startswith("PyTorch FSDP") and name) or "fsdp" in name
        stage = 3 if sharded else int(framework.name in ("NeMo", "Megatron-Bridge"))
        assumed["zero"] = str(stage)
    return stage


def _shard(words: str, note: str, dp: int) -> int | None:
    """The number of data-parallel ranks over which model states are sharded: the number that the words on sharding or the note
    state, or else all `dp` ranks. None for hybrid sharding (sharded within groups, copied between them) without a size.

    words: a measured run's words on sharding in lower case. note: its note (free text) in lower case. dp: number of
    data-parallel ranks.
    """
    if size := re.search(SHARD_GROUP, note):
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
    """Whether tensor-parallel ranks divide the tokens among themselves between their parallel regions (sequence parallelism):
    as the measured run states it, or else on if attention is fused.

    tp: tensor-parallel degree. framework: the cost model's settings for the run's framework. assumed: assumptions as texts by
    name, written to: gets an entry if the run does not state it.
    """
    text = f"{run.recompute or ''} {run.note or ''}".lower()
    if tp == 1:
        return False
    if SEQUENCE.search(text):
        return NOT_SEQUENCE.search(text) is None
    shared = framework.fused_attention and FUNCTIONAL_TEST not in text
    assumed["sequence parallelism"] = "on" if shared else "off"
    return shared


def exchange(run: Run, framework: Framework, assumed: Assumed) -> Exchange:
    """Which data context-parallel ranks exchange in attention, heads (all-to-all) or keys and values (ring or gather): the
    kind that the measured run's note or its framework's name states, or else the framework's usual kind. Raises InputError if
    a run names both kinds.

    framework: the cost model's settings for the run's framework. assumed: assumptions as texts by name, written to: gets an
    entry if the run does not state the kind.
    """
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
NODE_RATE = re.compile(  # the network's rate of a whole node, in gigabits a second
    rf"\b{GIGABITS}[ -](?:TCP|Ethernet|network|NIC per node)|\b(\d+) ?GbE\b"
    rf"|\b(?:one|single|1) {GIGABITS} \S*\s?(?:NIC|port|HCA)"
    rf"|\b{GIGABITS}[ -](?:\w+ )?(?:per|a|each) node",
    re.IGNORECASE,
)


def network_bytes_per_s(run: Run) -> float | None:
    """A device's share of the network bandwidth of its node, in bytes per second, if a measured run's note (free text) states
    the rate of the node or its ports; None if it does not. Nodes are assumed to have 8 devices.
    """
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


# Patterns of pipeline schedules in notes and frameworks.
SCHEDULES: tuple[tuple[str, RunSchedule], ...] = (
    (r"\bgpipe\b|\bafab\b|all[ _-]forward[ _-]all[ _-]backward", "gpipe"),
    (r"\bzb[ _-]?h1\b", "zb-h1"),
    (r"\bzb[ _-]?(?:v|h2|[12]p)\w*|zero[ _-]?bubble|dual[ _-]?pipe\w*", "zero-bubble"),
)
OTHER_SCHEDULES = re.compile(r"\bv[ _-](?:half|min)\b|chimera|hanayo|pipedream|terapipe|\bbitpipe|\bloop\w*[ _-]bfs")


def schedule_of(run: Run, assumed: Assumed) -> RunSchedule:
    """The pipeline schedule of a measured run: 1F1B, interleaved or not, unless the run names another one. assumed:
    assumptions as texts by name, written to: gets an entry if the run's schedule cannot be predicted and another one is
    predicted instead.
    """
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
    """The number of pipeline stages per device of a measured run that does not state this number: two if it states that stages
    are interleaved and there are enough layers, else one. pp: number of pipeline-parallel ranks. layers: number of layers.
    """
    text = f"{run.note or ''} {run.framework or ''}".lower()
    interleaved = flag(text, r"(?<!rotary[-_ ])interleaved?(?:[ _-]?1f1b|[ _-]pipeline|[ _-]schedule)?")
    return 2 if pp > 1 and layers >= 2 * pp and interleaved else 1


def degrees(run: Run) -> dict[str, int | None]:
    """The degrees of parallelism of a measured run as a dict with the keys tp, pp and cp; None for a degree that is not known.

    If the run states dp, degrees that it does not state follow from the others: the first such degree, of tp, pp and cp in
    this order, gets the remaining factor of the number of devices; if both tp and pp are not stated, tp gets it up to 8, the
    devices of a node, and pp the rest.
    """
    stated = {name: getattr(run, name) for name in ("tp", "pp", "cp")}
    open_ones = [name for name, degree in stated.items() if degree is None]
    remaining, rest = divmod(run.gpus, (run.dp or 1) * prod(degree or 1 for degree in stated.values()))
    if run.dp is None or rest or remaining == 1 or not open_ones:
        return stated
    first = gcd(remaining, 8) if open_ones[:2] == ["tp", "pp"] else remaining
    stated[open_ones[0]] = first
    if len(open_ones) > 1:
        stated[open_ones[1]] = remaining // first
    return stated
