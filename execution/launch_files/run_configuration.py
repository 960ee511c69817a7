"""A training run as the files of any runtime describe it (RunConfiguration), and the reader of a file's keys (KeyReader), which
records which keys were read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal

from trainplan.execution.launch_files.fields import Field, Kind
from trainplan.execution.launch_files.known_keys import KnownKeys
from trainplan.execution.launch_files.logs.steps import Log, RanOut
from trainplan.execution.launch_files.trainer_buffers import NO_BUFFERS, Buffers
from trainplan.formulations.plan.strategy import Exchange, Module
from trainplan.formulations.schedule.orders import PlanSchedule
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.precision import PLAIN, Precision

Host = Literal["optimizer", "parameters"]
SET = "--set"  # the source of values that the user sets in place of the file's

# Parts of the names of keys that bear on the model, on parallelism, on memory or on precision: where such a key is not read,
# what runs is not known.
BEARING = re.compile(
    r"(?:^|[-_.])(?:\w*parallel\w*|[tpcde]p|vpp|cp|degree|\w*shard\w*|zero|stages?|experts?|moe|\w*layers?|hidden\w*|heads?|ffn|inner"
    r"|vocab\w*|groups?|swiglu|rope|rotary|norm\w*|bias\w*|tie\w*|untie\w*|lora\w*|adapter|peft|quanti\w*|fp\d+\w*|bf16|float\d+"
    r"|int8|\w*bit|dtypes?|\w*precision\w*|amp|\w*recomput\w*|checkpoint-activations|activations?|remat\w*|\w*offload\w*|swap"
    r"|\w*batch\w*|micro\w*|accum\w*|seq\w*|packing|optimizer|muon|fsdp\d*|megatron-fsdp|flash\w*|attn|attention|mla|mtp|sliding|window"
    r"|pipeline|split-list|spec|chunks?|freeze\w*|heterogeneous|teacher|distill\w*)(?:$|[-_.])"
)
# Whole words of this kind, of which others are misspellings; and words that only look like one of them.
WORDS = (
    "accumulation", "activation", "activations", "attention", "batch", "checkpointing", "context", "degree", "experts",
    "hidden", "layers", "micro", "microbatch", "offload", "offloading", "optimizer", "parallel", "parallelism", "pipeline",
    "precision", "recompute", "replicate", "sequence", "sharding", "shard", "tensor", "vocab", "vocabulary",
)  # fmt: skip
OTHER_WORDS = {"shared", "sharing", "players", "content", "optimize", "optimized"}
# Those that bear on it whatever else the name says, as that of a file with other layers.
DECISIVE = re.compile(r"(?:^|[-_.])(?:freeze\w*|heterogeneous|teacher|distill\w*|spec|layers?-config)(?:$|[-_.])")
# Parts of such names that bear on nothing of the kind: where files are kept and how often something is printed.
HARMLESS = re.compile(r"(?:^|[-_.])(?:path|dir|file|log|logging|interval|save|name|port|url|seed|wandb|tensorboard)(?:$|[-_.])")


# Values of a right kind, by parts of the names of arguments, for advice.
EXAMPLES = {
    "virtual": "1",
    "max-position|seq": "4096", "vocab": "128256", "ffn": "14336", "hidden-size": "4096", "num-layers|attention-heads": "32",
    "groups": "8", "kv-channels": "128", "pipeline": "4", "context|ulysses": "2", "micro-batch": "1", "batch": "256",
    "zero-stage": "1", "rotary-base": "500000", "lr": "3e-4", "dropout": "0.0", "norm-epsilon": "1e-5", "iters|samples": "1000",
    "normalization": "RMSNorm", "recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": "1",
    "fp8-format": "hybrid", "position-embedding-type": "rope", "path|save|load|dir": "/path",
    "tokenizer-type": "HuggingFaceTokenizer",
}  # fmt: skip


# The same, by parts of the names of variables.
VARIABLES = {"GPU|NPROC|DEVICE|RANKS": "8", "NODES|WORLD_SIZE": "2", "SEQ": "4096", "MBS|MICRO": "1", "GBS|GLOBAL_BATCH": "256"}


def example_of(key: str, variable: str = "") -> str:
    """A plausible value for an argument, for advice in error messages: "--seq-length" -> "4096". key: the argument.
    variable: the variable of a script that decides the argument; its name may suggest a better value."""
    named = next((text for parts, text in VARIABLES.items() if re.search(parts, variable.upper())), None)
    found = next((text for parts, text in EXAMPLES.items() if re.search(rf"(?:{parts})", key)), "8")
    return named or EXAMPLES.get(key.lstrip("-")) or found


def affects_plan(key: str) -> bool:
    """Whether a key of a configuration, judged by the words of its name, may affect the model, parallelism, memory or
    precision. Unknown keys that may are refused instead of ignored."""
    name = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "-", key).lower()
    return bool(DECISIVE.search(name) or ((BEARING.search(name) or _misspelt(name)) and not HARMLESS.search(name)))


def _misspelt(name: str) -> bool:
    """Whether a word in the name of a key looks like a misspelling of a word that affects plans (WORDS): with one letter
    more or fewer, or with letters in the wrong order."""
    words = [word for word in re.split(r"[-_.\d]+", name) if len(word) > 3 and word not in OTHER_WORDS]
    turned = {"".join(sorted(word)) for word in WORDS}
    return any("".join(sorted(word)) in turned or get_close_matches(word, WORDS, n=1, cutoff=0.86) for word in words)


@dataclass(frozen=True)
class UserSettings:
    """Settings of a run that the user gives in addition to its file, on the command line or as arguments of `import_run`.

    variables: for a script, values of environment variables and, by number, of positional parameters; for other files, values
    by dotted key that replace those of the file. recompute: full or none, if the file leaves it to the model's code. model: the
    name or file of the model. ignored: keys that the user declares to be without effect. dtype: the model's dtype. half: the
    half-precision dtype that the devices support. launched: values of Accelerate's file that options of its launcher override,
    by key, with their source. sources: where `variables` are written, if not given by --set.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    recompute: str | None = None
    model: str | None = None
    ignored: frozenset[str] = frozenset()
    dtype: str | None = None
    half: str = "bfloat16"
    launched: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UndecidedValue:
    """A value that nobody has given.

    problem: what is known of it, for an error message. name: the variable that decides it; empty if there is none. example: a
    value that a script compares this variable with.
    """

    problem: str
    name: str
    example: str = ""


@dataclass(frozen=True)
class TakenValue:
    """A value that was used for a key, and its source: a file and line, an option, or a tool's default."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True)
class RecomputedLayers:
    """The layers that are recomputed in backward passes.

    of: full (whole layers), none, or modules (only `modules` of each recomputed layer). every: only each n-th layer is
    recomputed, such as 2 for every second layer. first: only the first n layers of each stage are. group: number of consecutive
    layers that are recomputed together.
    """

    of: Literal["none", "full", "modules"] = "none"
    modules: tuple[Module, ...] = ()
    every: int = 1
    first: int | None = None
    group: int = 1


@in_one_line
@dataclass(frozen=True, kw_only=True)
class RunConfiguration:
    """A training run as its file describes it. A field is None if the file does not specify it.

    where: the file. runtime: the runtime's name, as exports use it. software: the runtime whose defaults apply, under the name
    that tables of measured runs have for it. tool: the tool that the file belongs to, if that is not the runtime itself. flags:
    words on overlap and optimizer kernels, as the notes in such tables have them. model: the name of a shipped model. config:
    fields of a Hugging Face configuration, if the file describes the model. vocabulary_multiple: number to whose multiple the
    vocabulary is padded. dtype: the dtype of matrix multiplications. precision: dtypes of master weights and gradients. recipe:
    low-precision recipe of the layers' matrix multiplications. sequence: tokens per sample. devices, nodes: number in the whole
    run. samples: samples per step. micro_samples: samples per micro-batch on one rank. accumulation: micro-batches per step.
    tp, cp, pp: degrees of tensor, context and pipeline parallelism. exchange: the data that context-parallel ranks exchange.
    chunks: pipeline stages per rank. copies: data-parallel ranks with copies of states. shard: data-parallel ranks that shard
    states. within_nodes: whether only the ranks of one node shard states among them. zero: ZeRO stage of the sharded states.
    sequence_parallel: whether tensor-parallel ranks share tokens. schedule: the pipeline schedule. cuts: index of the first
    unit (embedding, sub-layer or head) of each stage but the first. layers_apart: by how many layers the first and the last
    stage are shorter if `cuts` is None. recomputed: layers that are recomputed. host: states kept on the host. buffers: memory
    that the trainer holds in addition to states and activations. optimizer: its name. flushed: number of micro-batches after
    which the pipeline runs empty, if a step may have more. alone: the reason why a run with a single data-parallel rank is
    refused; empty if such a run is fine. keys: the file's key by field, for errors. notes: lines on how the plan differs from
    the run. unread: keys that affect no plan. unknown: keys that nobody knows. undecided: fields whose values another file or
    program decides, with the name that the field has there. taken: every value that was used, with its source. log, ran_out: if
    the file is a log, what the run measured, and how it ran out of memory.
    """

    where: str
    runtime: str
    software: str
    tool: str = ""
    flags: str = ""
    model: str | None = None
    config: Mapping[str, Any] | None = None
    vocabulary_multiple: int = 1
    dtype: str | None = None
    precision: Precision = PLAIN
    recipe: RecipeName | None = None
    sequence: int | None = None
    devices: int | None = None
    nodes: int | None = None
    samples: int | None = None
    micro_samples: int | None = None
    accumulation: int | None = None
    tp: int = 1
    cp: int = 1
    exchange: Exchange = "keys"
    pp: int = 1
    chunks: int = 1
    copies: int | None = None
    shard: int | None = None
    within_nodes: bool = False
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    schedule: PlanSchedule = "1f1b"
    cuts: tuple[int, ...] | None = None
    layers_apart: tuple[int, int] = (0, 0)
    recomputed: RecomputedLayers = RecomputedLayers()
    host: tuple[Host, ...] = ()
    buffers: Buffers = NO_BUFFERS
    optimizer: OptimizerName = "adamw"
    flushed: int | None = None
    alone: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    undecided: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[TakenValue, ...] = ()
    log: Log | None = None
    ran_out: RanOut | None = None

    def error(self, name: str, problem: str, fix: str) -> InputError:
        """An InputError about a field of this configuration; it names the key of the user's file for the field. name: the
        field. problem: what is wrong. fix: what to change."""
        return InputError(self.where, self.keys.get(name, name), problem, fix)


def with_given(configuration: RunConfiguration, options: Mapping[str, Any]) -> RunConfiguration:
    """The configuration with the values of command-line options added to its list of values taken (`taken`), in front,
    except for options that the list already names as a source. options: values by name of the option; None if not given."""
    option_sources = tuple(value.source.split(" ")[0] for value in configuration.taken)
    named = {f"--{name.replace('_', '-')}": (name, value) for name, value in options.items() if value is not None}
    more = (TakenValue(name, value, option) for option, (name, value) in named.items() if option not in option_sources)
    return replace(configuration, taken=(*more, *configuration.taken))


class Declared(Enum):
    """The type of the single value DECLARED, which callers of KeyReader pass (by default) to mean: use the default in the
    declaration of the key."""

    DECLARED = "declared"


DECLARED = Declared.DECLARED


class KeyReader:
    """Reads the keys of a file, records which ones have been read and which value was used for each.

    Numbers may be written as texts, as in arguments of commands. where: the file, for errors. values: the file's values by key.
    automatic: values that stand for an unspecified key, such as "auto". sources: file and line by key (default: the file).
    defaults: the source to state for default values. ignored: keys that the user declares to be without effect. called: the
    file's own names of keys that are read under other names. undecided: keys that depend on values that nobody has given;
    reading one is an error. fields: declarations by key, whose defaults and choices apply if a call gives none.
    """

    def __init__(
        self,
        where: str,
        values: Mapping[str, Any],
        automatic: Collection[Any] = (None,),
        sources: Mapping[str, str] | None = None,
        defaults: str = "the default",
        ignored: Collection[str] = (),
        called: Mapping[str, str] | None = None,
        undecided: Mapping[str, UndecidedValue] | None = None,
        fields: Mapping[str, Field] | None = None,
    ) -> None:
        self.where, self.values, self.automatic = where, dict(values), tuple(automatic)
        self.sources, self.defaults, self.ignored = sources or {}, defaults, frozenset(ignored)
        self.called = called or {}
        self.undecided, self.fields = undecided or {}, fields or {}
        self.read: set[str] = set()
        self._taken: dict[str, TakenValue] = {}

    def error(self, key: str, problem: str, fix: str) -> InputError:
        """An InputError about a key, under the name that it has in the user's file. problem: what is wrong. fix: what to
        change."""
        return InputError(self.where, self.called.get(key, key), problem, fix)

    def source(self, key: str) -> str:
        """The file and line where a key is written; the file alone if the line is not known."""
        return self.sources.get(key, self.where)

    def fill(self, key: str, value: Any, source: str) -> None:
        """Set the value of a key that the file does not specify. source: where the value comes from, for reports."""
        self.values[key], self.sources = value, {**self.sources, key: source}

    def get(self, key: str) -> Any:
        """The value of a key, which is recorded as read; None if it is missing or has a value that does not specify it, such as
        "auto". Raises InputError if it depends on a value that nobody has given."""
        self.read.add(key)
        if (undecided := self.undecided.get(key)) is not None:
            example = undecided.example or example_of(key, undecided.name)
            fix = (
                f"say what the variable is: --set {undecided.name}={example}"
                if undecided.name
                else "give the command by --command"
            )
            if undecided.name and "not given" in undecided.problem:
                fix += f", or --set {undecided.name}= where it is empty"
            raise self.error(key, undecided.problem, fix)
        value = self.values.get(key)
        if any(value is open_ or value == open_ for open_ in self.automatic if type(value) is type(open_)):
            return None
        self.take(key, value, self.source(key))
        return value

    def take(self, key: str, value: Any, source: str | None = None) -> None:
        """Record the value that is used for a key. source: where it comes from, for reports; None for the tool's defaults."""
        self._taken[key] = TakenValue(key, value, source or self.defaults)

    @property
    def taken(self) -> tuple[TakenValue, ...]:
        """Every value that was used and its source, in the order in which the keys were first read."""
        return tuple(self._taken.values())

    def _default(self, key: str, value: Any) -> Any:
        """The default value of a key, which is recorded as the value used unless it is None. value: the default."""
        if value is not None and key not in self._taken:
            self.take(key, value)
        return value

    def _declared(self, key: str, kind: Kind, default: Any) -> Any:
        """The default of a key. kind: the kind of value that the caller reads, which must be the declared one. default: the
        caller's default; if it is DECLARED, the default of the key's declaration counts (None without a declaration)."""
        field = self.fields.get(key)
        assert field is None or field.kind == kind, f"{key} is declared as {field.kind}"
        return default if default is not DECLARED else None if field is None else field.default

    def whole(self, key: str, default: int | Declared | None = DECLARED, least: int = 1) -> int | None:
        """The value of a key as a whole number. default: the result if the key is missing, None included; DECLARED for the
        default in the key's declaration. least: the smallest allowed value. Raises InputError for other values."""
        default, value = self._declared(key, "whole", default), self.get(key)
        if value is None:
            return self._default(key, default)
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}|\d{1,4}(_\d{1,4}){1,5}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"is {shown(value)}", f"give a whole number of at least {least}{_unset(key, value)}")
        return value

    def number(self, key: str, default: float | Declared = DECLARED) -> float:
        """The value of a key as a float. default: the result if the key is missing; DECLARED for the default in the key's
        declaration. Raises InputError if the value is not a number."""
        default, value = self._declared(key, "number", default), self.get(key)
        try:
            return self._default(key, default) if value is None else float(value)
        except (TypeError, ValueError):
            raise self.error(key, f"is {shown(value)}", f"give a number, such as {default:g}{_unset(key, value)}") from None

    def flag(self, key: str, default: bool | Declared = DECLARED) -> bool:
        """Whether a key is on; an argument without a value is on. default: the result if the key is missing; DECLARED for the
        default in the key's declaration. Raises InputError for values other than true and false."""
        default, value = self._declared(key, "flag", default), self.get(key)
        if value is None:
            return self._default(key, bool(default))
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "1", "", "false", "no", "0"):
            return value.lower() in ("true", "yes", "1", "")
        raise self.error(key, f"is {shown(value)}", "give true or false")

    def text(self, key: str, default: str | Declared = DECLARED, choices: Collection[str] = ()) -> str:
        """The value of a key as a text. default: the result if the key is missing; DECLARED for the default in the key's
        declaration. choices: the allowed texts; if empty, those of the key's declaration, or any text. Raises InputError for
        other values."""
        default, value = self._declared(key, "text", default), self.get(key)
        choices = choices or (self.fields[key].choices if key in self.fields else ())
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str) or (choices and value not in choices):
            fix = one_of(value, choices) if choices else f"give a text, such as {default!r}"
            raise self.error(key, f"is {shown(value)}", fix)
        return value

    def word(self, key: str) -> Any:
        """The plan's term for the text of a key, translated by the `words` of the key's declaration. Raises InputError if
        the text is not one of the choices."""
        words = self.fields[key].words
        assert words is not None, f"{key} is declared without words"
        return words[self.text(key)]

    def refuse(self, key: str, neutral: Collection[Any], why: str) -> None:
        """Check that a key does not ask for a feature that no plan has. neutral: values that are fine, in any case of
        letters. why: the reason, for the message. Raises InputError for other values, unless the user declared the key to be
        without effect."""
        value = None if key in self.ignored else self.get(key)
        if value is None or str(value).lower() in {str(allowed).lower() for allowed in neutral}:
            return
        raise self.error(key, f"is {shown(value)}", f"leave it out, or give {next(iter(neutral))}: {why}")

    def left(self, known: KnownKeys) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The keys of the file that were not read, in two groups: those known to affect no plan, and unknown ones, each
        followed by a similar known key if there is one. known: the list of keys that affect no plan. Raises InputError for
        an unknown key that may affect the plan or that is set on the command line."""
        rest = [key for key in self.values if key not in self.read and key not in self.ignored]
        fine = [key for key in rest if known.has(key)]
        every = {*known.names, *self.read}
        unknown = []
        for key in rest:
            if self.source(key) == SET and key not in known.names:
                self._refuse_set(key, every, key in fine)
            if key not in fine:
                near = get_close_matches(key, every, n=1, cutoff=0.8)
                if (affects_plan(key) or (near and affects_plan(near[0]))) and self.values[key] not in (None, False):
                    fix = f"say that it changes nothing by --ignore {key}" + (f", or write {near[0]}" if near else "")
                    problem = f"is {shown(self.values[key])}, and no key that is read: what runs is not known"
                    raise self.error(key, problem, fix)
                unknown.append(key + (f" (did you mean {near[0]}?)" if near else ""))
        return (*fine, *sorted(self.ignored & set(self.values))), tuple(unknown)

    def _refuse_set(self, key: str, every: Collection[str], harmless: bool) -> None:
        """Refuse an unknown key that the user sets on the command line. every: known keys, for suggestions. harmless:
        whether the key is in a table that affects no plan; if so, it is refused only if it resembles a key that is read.
        Raises InputError if it is refused."""
        written = {self.called.get(known_key, known_key) for known_key in every}
        name = self.called.get(key, key)
        same = sorted(known_key for known_key in written if known_key.rpartition(".")[2] == name.rpartition(".")[2])
        near = list(dict.fromkeys((*same, *get_close_matches(name, written, n=3, cutoff=0.7))))[:4]
        if harmless and not any(known_key in self.read for known_key in get_close_matches(key, every, n=1, cutoff=0.8)):
            return
        fix = f"did you mean {' or '.join(near)}?" if near else f"give a key of it, such as {', '.join(sorted(self.read)[:4])}"
        raise InputError(COMMAND_LINE, SET, f"is {name}, and no key of {self.where} that is read", fix)


def _unset(key: str, value: Any) -> str:
    """Advice for the end of an error message to give a script's variable by --set, if the value of a key contains a variable
    such as $SEQ that the script does not set; otherwise an empty text."""
    name = re.search(r"\$\{?(\w+)", value) if isinstance(value, str) else None
    return f", or say what the variable is: --set {name[1]}={example_of(key, name[1])}" if name else ""


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into one with dotted keys: {"a": {"b": 1}} -> {"a.b": 1}. Empty tables are left out. prefix: put in
    front of every key."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= flattened(inner, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = inner
    return flat
