"""The file format of the library's entries: an instance, its best known solution, and what is proven about it."""

from __future__ import annotations

import gzip
import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints

from trainplan.formulations.problem import InstanceLike, problem
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, parse
from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.result import relative_gap

FORMAT = "trainplan-library/1"
SUFFIX = ".json.gz"
SEPARATOR = "--"  # stands for the slash of a name in the name of its file
LARGEST_CONTENT = 2 * 2**20  # bytes, compressed, of an instance that an entry holds; a larger one is its request and its hash
SHORT = {  # what the names of instances begin with, by problem; of other problems, the problem's name
    "layer-strategies": "chain",
    "stage-assignment": "assignment",
    "pipeline-partition": "partition",
    "memory-switches": "switches",
    "cluster-strategy": "cluster",
    "galvatron-engine": "engine",
}
Status = Literal["easy", "hard", "open"]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z]+/[A-Za-z0-9][A-Za-z0-9._+]*(-[A-Za-z0-9._+]+)*$", max_length=100)]


class LowerBound(Record):
    """A number of ns below which no solution's objective is, and how it was found.

    value: in ns. method, options: the method that found it, as `trainplan solve` takes them. who: a person or a program. date:
    as 2026-11-27. versions: of Python and packages, by name. machine: processor, cores, memory_bytes and system. seconds: wall
    time of the method.
    """

    value: int = Field(ge=0)
    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    who: str
    date: str
    versions: dict[str, str]
    machine: dict[str, Any]
    seconds: float = Field(ge=0)


class UpperBound(LowerBound):
    """A solution and its objective in ns, `value`, with the fields of a lower bound that say how it was found. solution: in the
    file format of the problem's solutions."""

    solution: dict[str, Any]


class CheckedBound(Record):
    """A lower bound, in ns, that can be checked without a solver. kind: the kind of evidence, as docs/library.md lists them.
    evidence: the evidence, in that kind's format."""

    value: int = Field(ge=0)
    kind: str
    evidence: dict[str, Any]


class Earlier(Record):
    """Bounds that an entry once had and that better ones have replaced; None where that bound was not replaced."""

    upper_bound: UpperBound | None = None
    lower_bound: LowerBound | None = None


class Entry(Record):
    """An entry of the library, as its file states it: one instance of a problem, with its bounds.

    Attributes:
        format: the name and version of this format.
        name: the problem's short name and the instance's own, such as chain/bert-huge-32-titan-8.
        problem: the name of the instance's problem.
        about: why the instance is in the library, in a sentence.
        source: where its numbers come from, such as {"paper": "Galvatron-BMW"}.
        request: the arguments of `trainplan build` that made it, whose times are those of the version that made it where they
            are estimates; None if it was not built from a model and a cluster.
        instance_hash: SHA-256 of the instance, in hexadecimal digits.
        content: the instance's own file, `instance` in the file; None for a large one, which its request makes again.
        size: numbers that show how large it is, by name.
        status: easy (some exact method closes it in 10 s), hard (closed, but not so soon) or open (a gap is left). Closed means
            that the best solution is proven optimal, or that nothing fits.
        infeasible: whether it is proven that no solution exists. There are then no bounds.
        reason: why not, in a sentence.
        upper_bound: the best known solution.
        lower_bound: the largest proven lower bound.
        checked_lower_bound: the largest one with evidence.
        history: bounds that were replaced, the last one first.
    """

    noun: ClassVar[str] = "entry of the library"
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    format: Literal["trainplan-library/1"]
    name: Name
    problem: str
    about: str = Field(min_length=1, max_length=400)
    source: dict[str, str] = Field(min_length=1)
    request: dict[str, Any] | None
    instance_hash: str = Field(pattern="^[0-9a-f]{64}$")
    content: dict[str, Any] | None = Field(alias="instance")
    size: dict[str, int]
    status: Status
    infeasible: bool = False
    reason: str | None = None
    upper_bound: UpperBound | None
    lower_bound: LowerBound | None
    checked_lower_bound: CheckedBound | None = None
    history: list[Earlier] = Field(default_factory=list)

    @property
    def best(self) -> int | None:
        """The objective of the best known solution, in ns; None if there is none."""
        return None if self.upper_bound is None else self.upper_bound.value

    @property
    def bound(self) -> int | None:
        """The largest proven lower bound, in ns; None if there is none."""
        return None if self.lower_bound is None else self.lower_bound.value

    @property
    def gap(self) -> float | None:
        """(best - bound) / best; None if one of them is not known."""
        return relative_gap(self.best, self.bound)

    @property
    def solution(self) -> dict[str, Any] | None:
        """The best known solution, in its file format; None if there is none."""
        return None if self.upper_bound is None else self.upper_bound.solution

    def instance(self) -> Any:
        """The instance, whose hash has been compared with the entry's. A large one is built from its request.

        Raises InputError if the hash is another, or if there is neither content nor a request.
        """
        if self.content is not None:
            built = problem(self.problem).load(self.content, self.name)
        elif self.request is not None:
            built = built_from(self.problem, self.request)
        else:
            raise InputError(self.name, "instance", "is null, and so is the request", "give one of them")
        if built.digest != self.instance_hash:
            fix = "give the hash of the instance, or the request that makes it"
            raise InputError(self.name, "instance_hash", f"is {self.instance_hash}, and the instance's {built.digest}", fix)
        return built

    def whole(self) -> dict[str, Any]:
        """The entry as its file has it, with the instance in it even if the file has only the request of a large one."""
        return {**self.model_dump(mode="json"), "instance": self.content or self.instance().to_dict()}


def built_from(problem_name: str, request: dict[str, Any]) -> InstanceLike:
    """The instance that a request of the library makes. request: the arguments of `trainplan build`, by their names in Python.
    Raises InputError for a request that makes none."""
    instance: InstanceLike = attribute("trainplan.api:build")(problem_name, **request)
    return instance


def content_of(instance: InstanceLike, request: dict[str, Any] | None) -> dict[str, Any] | None:
    """The instance's file as an entry holds it: None if it is large and a request makes it again."""
    content = instance.to_dict()
    return None if request is not None and len(compressed(content)) > LARGEST_CONTENT else content


def short_name(problem_name: str) -> str:
    """The part before the slash of the names of a problem's instances, such as `chain` of layer-strategies."""
    return SHORT.get(problem_name, problem_name)


def today() -> str:
    """Today's date, such as 2026-11-27."""
    return date.today().isoformat()


def compressed(content: dict[str, Any]) -> bytes:
    """A JSON object as the compressed file that the library stores; equal objects give equal bytes."""
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0)


def file_name(name: str) -> str:
    """The name of the file of an entry: `chain/gpt2` is in `chain--gpt2.json.gz`."""
    return name.replace("/", SEPARATOR) + SUFFIX


def read_entry(path: Path) -> Entry:
    """The entry in a file, `.json.gz` or `.json`. Raises InputError for a file that is none."""
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except FileNotFoundError:
        raise InputError(str(path), "", "does not exist", "name an entry's file") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(str(path), "", f"cannot be read ({error})", "name an entry's file, .json or .json.gz") from None
    if not isinstance(content, dict):
        raise InputError(str(path), "", "holds no JSON object", "name an entry's file")
    return parse(content, Entry, str(path))
