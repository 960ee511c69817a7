"""A training run of a mixture of experts as its file describes it: the experts of its model, their layout on the devices, and
how their tokens are exchanged.

Plans do not lay out experts yet: the readers of runtimes read such a run into a record, check that it is legal, and raise
`RunOfExperts`, which has the record, so that no such run is taken for that of a dense model.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainplan.execution.launch_files.run_configuration import KeyReader, TakenValue
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.quantities import divisors, plural

MOST_LAYERS = 10_000
FIX = "give a dense model: plans do not lay out experts yet"


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """The settings of a run of a mixture of experts. A field is None if neither the file nor its tool's defaults specify it.

    MEANINGS has the unit of each field and what it says, except for these three. where: the file. tool: the tool that the file
    belongs to, as users write it. taken: for each field that the file or its tool's default decides, the tool's own key, the
    value as written, and its source.
    """

    where: str
    tool: str
    experts: int | None = None
    chosen: int | None = None
    groups: int | None = None
    chosen_groups: int | None = None
    score: str | None = None
    router_dtype: str | None = None
    balancing: str | None = None
    forced_balance: bool = False
    capacity: float | None = None
    padded: bool = False
    layers: int | None = None
    layers_of_experts: tuple[bool, ...] | None = None
    hidden: int | None = None
    dense_inner: int | None = None
    expert_inner: int | None = None
    shared_inner: int | None = None
    latent: bool = False
    query_rank: int | None = None
    key_value_rank: int | None = None
    head: int | None = None
    rotary_head: int | None = None
    value_head: int | None = None
    predicted: int = 0
    world: int | None = None
    tp: int = 1
    cp: int = 1
    pp: int = 1
    chunks: int | None = None
    stages: tuple[str, ...] | None = None
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    zero: int | None = None
    dispatcher: str | None = None
    grouped: bool = False
    shared_overlap: bool = False
    exchange_overlap: bool = False
    delayed_weights: bool = False
    recomputed: tuple[str, ...] = ()
    taken: Mapping[str, TakenValue] = field(default_factory=dict)

    @property
    def dp(self) -> int | None:
        """Number of data-parallel ranks of units that are not of experts; None if the number of devices is not known."""
        return None if self.world is None else self.world // (self.tp * self.cp * self.pp)

    @property
    def edp(self) -> int | None:
        """Number of ranks that have copies or shards of the same experts; None if the number of devices is not known."""
        return None if self.world is None else self.world // (self.etp * self.ep * self.pp)

    @property
    def layout(self) -> str:
        """The layout of experts in words, such as "ep 8, etp 1, edp 4"."""
        return f"ep {self.ep}, etp {self.etp}" + ("" if self.edp is None else f", edp {self.edp}")

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each setting that is known, in the order of MEANINGS: `field`, `value`, `unit`, `meaning`, and the tool's
        own `key` with its `source`; both are empty for values that follow from others."""
        known = {one.name: getattr(self, one.name) for one in fields(self)} | {"dp": self.dp, "edp": self.edp}
        result = []
        for name, (unit, meaning) in MEANINGS.items():
            value, least = known[name], (False, 0, 1) if name in ("tp", "cp", "pp") else (False, 0)
            if value in (None, ()) or (value in least and name not in self.taken):
                continue
            taken = self.taken.get(name)
            key, source = ("", "") if taken is None else (taken.key, taken.source)
            result.append({"field": name, "value": value, "unit": unit, "meaning": meaning, "key": key, "source": source})
        return result


# The unit of each setting, in the singular, and what it says.
MEANINGS: dict[str, tuple[str, str]] = {
    "experts": ("expert", "routed experts of a layer"),
    "chosen": ("expert", "experts that each token is sent to"),
    "groups": ("group", "groups of experts, of which the router chooses some first"),
    "chosen_groups": ("group", "groups that each token may be sent to"),
    "score": ("", "function that makes the router's scores"),
    "router_dtype": ("", "dtype of the router's product"),
    "balancing": ("", "what balances tokens among experts"),
    "forced_balance": ("", "whether tokens are sent to experts evenly, whatever the router says"),
    "capacity": ("", "most tokens of an expert, over the mean; what is beyond is dropped"),
    "padded": ("", "whether experts get as many tokens as their capacity"),
    "layers": ("layer", "transformer layers"),
    "layers_of_experts": ("", "which layers have experts"),
    "hidden": ("element", "hidden size"),
    "dense_inner": ("element", "inner size of feed-forward networks without experts"),
    "expert_inner": ("element", "inner size of each routed expert"),
    "shared_inner": ("element", "inner size of shared experts, together"),
    "latent": ("", "whether attention is latent (MLA)"),
    "query_rank": ("element", "rank of compressed queries"),
    "key_value_rank": ("element", "rank of compressed keys and values"),
    "head": ("element", "size of a head without rotation"),
    "rotary_head": ("element", "size of the rotated part of a head"),
    "value_head": ("element", "size of a head of values"),
    "predicted": ("layer", "layers of multi-token prediction"),
    "world": ("device", "devices of the run"),
    "tp": ("rank", "tensor parallelism, of all but experts"),
    "cp": ("rank", "context parallelism"),
    "pp": ("rank", "pipeline parallelism"),
    "chunks": ("stage", "pipeline stages of each rank"),
    "stages": ("", "parts of each stage"),
    "dp": ("rank", "data parallelism, of all but experts"),
    "ep": ("rank", "expert parallelism"),
    "etp": ("rank", "tensor parallelism of experts"),
    "edp": ("rank", "data parallelism of experts"),
    "sequence_parallel": ("", "whether tensor-parallel ranks share tokens"),
    "zero": ("", "ZeRO stage; states of experts are shared among edp ranks"),
    "dispatcher": ("", "what exchanges tokens among expert-parallel ranks"),
    "grouped": ("", "whether one kernel multiplies the matrices of all experts of a rank"),
    "shared_overlap": ("", "whether shared experts are computed during the exchange"),
    "exchange_overlap": ("", "whether passes of one micro-batch hide the exchange of another"),
    "delayed_weights": ("", "whether gradients of weights wait for the exchange"),
    "recomputed": ("", "modules that backward passes recompute"),
}


class RunOfExperts(InputError):
    """A run of a mixture of experts, which is read but not planned. settings: what was read."""

    def __init__(self, where: str, field: str, problem: str, fix: str, settings: ExpertSettings | None = None) -> None:
        super().__init__(where, field, problem, fix)
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error with its settings."""
        return type(self), (self.where, self.command_field, self.problem, self.fix, self.settings)


def refusal(settings: ExpertSettings, key: str) -> RunOfExperts:
    """The error for a run of a mixture of experts, whose settings were read and are legal. key: the tool's key for the number
    of experts."""
    chosen = "" if settings.chosen is None else f", {settings.chosen} a token"
    counts = "" if settings.experts is None else f" ({settings.experts}{chosen})"
    what = f"a mixture of experts{counts}, read as {settings.layout}"
    value = settings.taken["experts"].value if "experts" in settings.taken else settings.experts
    return RunOfExperts(settings.where, key, f"is {shown(value)}: {what}", FIX, settings)


class ExpertReader:
    """Reads the settings of a mixture of experts by a tool's own keys, and records which key decided which setting.

    keys: gives the values of the file's keys, and records which keys have been read. names: the tool's key by setting; a
    setting that the tool does not have is left out. defaults: the tool's defaults by setting.
    """

    def __init__(self, keys: KeyReader, names: Mapping[str, str], defaults: Mapping[str, Any]) -> None:
        self.keys, self.names, self.defaults = keys, names, defaults

    def whole(self, name: str, least: int = 1) -> int | None:
        """A setting that is a whole number of at least `least`; None if neither file nor tool has it. Raises InputError for
        other values."""
        return self.keys.whole(self.names[name], self.defaults.get(name), least) if name in self.names else None

    def flag(self, name: str) -> bool:
        """A setting that is on or off. Raises InputError for other values."""
        return name in self.names and self.keys.flag(self.names[name], bool(self.defaults.get(name, False)))

    def text(self, name: str) -> str | None:
        """A setting that is a text, or several, which are joined by commas; None if neither file nor tool has it."""
        if name not in self.names:
            return None
        value = self.keys.get(self.names[name])
        if value is None and (value := self.defaults.get(name)) is not None:
            self.keys.take(self.names[name], value)
        return None if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    def number(self, name: str) -> float | None:
        """A setting that is a number; None if the file does not have it. Raises InputError for other values."""
        if name not in self.names or self.keys.get(self.names[name]) in (None, "None"):
            return None
        return self.keys.number(self.names[name], 1.0)

    def taken(self) -> dict[str, TakenValue]:
        """The key, value and source of every setting that was read so far, by setting."""
        taken = {value.key: value for value in self.keys.taken}
        return {name: taken[key] for name, key in self.names.items() if key in taken}

    def error(self, name: str, problem: str, fix: str) -> InputError:
        """An InputError about a setting, by the tool's key for it."""
        return self.keys.error(self.names.get(name, name), problem, fix)


def refuse_illegal(settings: ExpertSettings, reader: ExpertReader) -> None:
    """Raise InputError, naming the tool's key, if experts cannot be laid out as a run's settings say: experts by ep, inner size
    by etp, and devices by both of the run's layouts."""
    experts, ep, etp, inner = settings.experts, settings.ep, settings.etp, settings.expert_inner
    if experts is not None:
        _refuse_counts(settings, experts, reader)
    if inner is not None and inner % etp:
        raise reader.error("etp", f"is {etp}, with experts of inner size {inner}", f"give a divisor of {inner}, such as 1")
    if settings.chosen_groups is not None and settings.chosen_groups > (settings.groups or 1):
        raise reader.error("chosen_groups", f"is {settings.chosen_groups}", f"give at most {settings.groups or 1}, the groups")
    if settings.world is None:
        return
    dense = settings.tp * settings.cp * settings.pp
    if settings.world % dense:
        words = f"tp {settings.tp}, cp {settings.cp} and pp {settings.pp}"
        raise reader.error("pp", f"is {settings.pp}, with {words} on {settings.world} devices", f"give a multiple of {dense}")
    stage = settings.world // settings.pp
    if stage % (ep * etp):
        words = f"is {ep}, with etp {etp} on the {stage} devices of a stage"
        raise reader.error(
            "ep", words, f"give a number whose product with etp {etp} divides {stage}, such as {_best(stage, etp, experts)}"
        )


def _refuse_counts(settings: ExpertSettings, experts: int, reader: ExpertReader) -> None:
    """Raise InputError, naming the tool's key, if a number of experts is divided among more ranks, groups or choices than there
    are experts for. experts: routed experts of a layer."""
    count, groups = plural(experts, "expert"), settings.groups
    if settings.chosen is not None and settings.chosen > experts:
        raise reader.error("chosen", f"is {settings.chosen}, of {count}", f"give at most {experts}")
    if experts % settings.ep:
        raise reader.error("ep", f"is {settings.ep}, with {count}", f"give one of {_divisors(experts)}")
    if groups is not None and experts % groups:
        raise reader.error("groups", f"is {groups}, with {count}", f"give one of {_divisors(experts)}")


def _divisors(number: int) -> str:
    """The divisors of a number as text, at most eight of them: "1, 2, 4, 8"."""
    return ", ".join(map(str, divisors(number)[:8]))


def _best(stage: int, etp: int, experts: int | None) -> int:
    """The largest number of expert-parallel ranks that divides the experts, if their number is known, and whose product with
    etp divides the devices of a stage; 1 if there is none."""
    return max((one for one in divisors(experts or stage) if stage % (one * etp) == 0), default=1)


def pattern(value: Any, layers: int) -> tuple[bool, ...] | None:
    """Which layers have experts, by Megatron-Core's moe_layer_freq: every n-th layer from the first, for a number n, or a list
    with 1 for a layer of experts and 0 for a dense one, which may be an expression such as "([0]*3+[1]*58)" or "0 1 1". None
    if it is neither, or of another number of layers. layers: number of layers."""
    if isinstance(value, str):
        text = value.strip()
        digits = text.replace(",", " ").split()
        if len(digits) == layers > 1 and set(digits) <= {"0", "1"}:
            value = [int(digit) for digit in digits]
        else:
            try:
                value = _lists(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return tuple(layer % value == 0 for layer in range(layers))
    if isinstance(value, list) and len(value) == layers and all(item in (0, 1) for item in value):
        return tuple(map(bool, value))
    return None


def _lists(node: ast.expr) -> Any:
    """The value of an expression of numbers, lists, sums and products of these. Raises ValueError for any other."""
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.List(elts=items):
            return [_lists(item) for item in items]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _lists(left), _lists(right)
            if isinstance(one, list) and isinstance(other, list) and len(one) + len(other) <= MOST_LAYERS:
                return one + other
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _lists(left), _lists(right)
            items, count = (one, other) if isinstance(one, list) else (other, one)
            if isinstance(items, list) and isinstance(count, int) and len(items) * count <= MOST_LAYERS:
                return items * count
    raise ValueError("no list of layers")


def layers_in_words(layers: tuple[bool, ...]) -> str:
    """Which layers have experts, in words: "all 32", "all but 0 to 2, of 61" or "1, 3, 5, .. (24 of 48)"."""
    with_experts = [number for number, has in enumerate(layers) if has]
    dense = [number for number, has in enumerate(layers) if not has]
    if not dense:
        return f"all {len(layers)}"
    if not with_experts:
        return f"none of {len(layers)}"
    if dense == list(range(len(dense))):
        last = "" if len(dense) == 1 else f" to {dense[-1]}"
        return f"all but {dense[0]}{last}, of {len(layers)}"
    more = ", .." * (len(with_experts) > 3)
    return f"{', '.join(map(str, with_experts[:3]))}{more} ({len(with_experts)} of {len(layers)})"
