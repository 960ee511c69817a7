"""The record of each request's answer: the numbers themselves where there are few, digests where there are many."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import trainplan as tp
from tests.golden.inside import export_names, exporter, issued

DIGITS = 16  # hexadecimal, of a digest
BY_MACHINE = {"versions", "seconds", "build_seconds", "solve_seconds", "walk_seconds", "spent", "memory_used_bytes", "date"}


def digest(value: Any) -> str:
    """The first digits of the SHA-256 of a value's JSON with sorted names, without what depends on machine and time."""
    text = json.dumps(_lasting(value), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _lasting(entry) for name, entry in value.items() if name not in BY_MACHINE}
    return [_lasting(entry) for entry in value] if isinstance(value, list | tuple) else value


def digest_of_all(values: Iterable[Any]) -> str:
    """The digest of a series of values that is too long to be one text."""
    whole = hashlib.sha256()
    for value in values:
        whole.update(repr(value).encode())
    return whole.hexdigest()[:DIGITS]


def outcome(kind: str, requested: dict[str, Any]) -> dict[str, Any]:
    """The record of a request; for one that is refused, the message that the user gets."""
    try:
        return KINDS[kind](**requested)
    except tp.InputError as refused:
        return {"refused": str(refused)}


def _plan(exports: bool = False, **requested: Any) -> dict[str, Any]:
    answer = tp.plan(**requested, time_limit=None)
    made: dict[str, Any] = {"like": answer.preset.name, "method": answer.result.method, "status": answer.answer.status}
    made |= {"objective_ns": answer.answer.objective_ns, "bound_ns": answer.answer.bound_ns}
    made |= {"instance": _hex(answer.instance.digest), "needed_bytes": answer.needed_bytes}
    made |= {"needed_devices": answer.needed_devices, "margin_bytes": answer.margin_bytes, "step_ns": answer.step_ns}
    made |= {"any_schedule_ns": answer.any_schedule_ns, "instead": answer.instead}
    made |= {"prices": [price.to_dict(answer.answer) for price in answer.prices] or None}
    plan = answer.plan
    if plan is None:
        return _reported(made | {"reason": digest(answer.summary())})
    if answer.uniform is not None:
        made |= {"uniform": [answer.uniform.step_ns, answer.uniform.answer.bound_ns]}
    made |= {"plan": digest(plan.content), "walked_ns": answer.walked_ns, "walked_bytes": _of_ranks(answer.walk_bytes)}
    if plan.predicted is not None:
        predicted = plan.predicted
        made |= {"peak_bytes": _of_ranks(predicted.peak_bytes), "software": predicted.software or None}
        made |= {"durations": digest(predicted.durations), "performance": digest(answer.performance.to_dict())}
    if answer.preset.problem_name == "joint":
        certified = tp.certify(answer, time_limit=None)
        evidence = certified.plan.claim.evidence
        if evidence is not None:
            made |= {"certified_ns": evidence.bound_ns, "certificate": digest(evidence.model_dump())}
            made |= {"claim": [certified.plan.claim.bound_ns, certified.plan.claim.status]}
    if exports and answer.judged is not None:
        made |= _program(plan, answer.judged, requested["cluster"])
        made |= {"exports": {name: _export(plan, name) for name in export_names()}}
    return _reported(made)


def _program(plan: Any, judged: Any, cluster: str) -> dict[str, Any]:
    """The compiled program, the analysis of it, and what `simulate` says of the plan, alone and for a cluster."""
    walk = judged.time
    made: dict[str, Any] = {"program": digest_of_all(issued(judged)), "timeline": digest([walk.start_ns, walk.end_ns])}
    made |= {"host_bytes": _of_ranks(judged.host_bytes) if any(judged.host_bytes) else None}
    simulated = tp.simulate(plan)
    made |= {"simulated": {"carried": simulated.step_ns, **_trace(simulated)}}
    for name, options in (("cluster", {}), ("executed", {"cost_model": "executed"}), ("streams", {"cost_model": "streams"})):
        try:
            made["simulated"][name] = tp.simulate(plan, cluster=cluster, **options).step_ns
        except tp.InputError as refused:
            made["simulated"][name] = digest(str(refused))
    return made


def _trace(simulated: Any) -> dict[str, Any]:
    try:
        events = simulated.trace()["traceEvents"]
    except tp.InputError as refused:
        return {"trace": digest(str(refused))}
    return {"events": len(events), "trace": digest(events)}


def _export(plan: Any, name: str) -> Any:
    try:
        written = exporter(name)(plan, "plan")
    except tp.InputError as refused:
        return f"refused {digest(str(refused))}"
    return {file: hashlib.sha256(text.encode()).hexdigest()[:DIGITS] for file, text in sorted(written.files.items())}


def _solve(instance: dict[str, Any], methods: list[str]) -> dict[str, Any]:
    loaded = tp.load(instance)
    return {"instance": _hex(loaded.digest), "methods": {name: _solved(loaded, name) for name in methods}}


def _build(problem: str, requested: dict[str, Any], methods: list[str]) -> dict[str, Any]:
    built = tp.build(problem, **requested)
    about = {"instance": _hex(built.digest), "file": digest(built.to_dict())}
    return about | {"methods": {name: _solved(built, name) for name in methods}}


def _solved(instance: Any, method: str) -> Any:
    """Status, objective, bound and solution of a method."""
    entry = next(one_method for one_method in tp.methods(instance.problem) if one_method.name == method)
    one_worker = {"workers": 1} if "workers" in {option.name for option in entry.options} else {}
    result = tp.solve(instance, method, time_limit=None, seed=1, **one_worker)
    return [result.status, result.objective, result.bound, digest(result.solution)]


def _partition(requested: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    instance = tp.build("pipeline-partition", **requested)
    simulated = tp.simulate(instance, **shape)
    return {"step_ns": simulated.step_ns, "all": digest(simulated.to_dict()), **_trace(simulated)}


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    [predicted] = tp.validate([row])
    stated = predicted.to_dict()
    step, peak = stated.pop("step_s"), stated.pop("peak_gib")
    numbers = {} if step is None else {"step_ns": round(step * 1e9), "peak_bytes": round(peak * 2**30)}
    return numbers | {"fits": stated["fits"], "all": digest(stated)}


def _configuration(file: str, cluster: str, **given: Any) -> dict[str, Any]:
    run = tp.import_run(file, cluster=cluster, search=False, **given)
    made = {"runtime": run.configuration.runtime, "fits": run.fits}
    made |= {"step_ns": run.step_ns, "peak_bytes": _of_ranks(run.peak_bytes)}
    made |= {"walked_ns": run.judged.step_ns, "walked_bytes": _of_ranks(run.judged.peak_bytes)}
    return made | {"plan": digest(run.plan.content), "rows": digest(run.rows()), "notes": digest(run.configuration.notes)}


def _verb(verb: str, requested: dict[str, Any]) -> dict[str, Any]:
    answer = getattr(tp, verb)(**requested)
    return {"answer": digest(answer.to_dict() if hasattr(answer, "to_dict") else answer.rows())}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "plan": _plan,
    "solve": _solve,
    "build": _build,
    "partition": _partition,
    "measured": _measured,
    "configuration": _configuration,
    "verb": _verb,
}


def _of_ranks(sizes: Iterable[int]) -> Any:
    """The most of all ranks' bytes, and the digest of all where they are not alike."""
    all_of_them = list(sizes)
    most = max(all_of_them, default=0)
    return [len(all_of_them), most] + ([digest(all_of_them)] if len(set(all_of_them)) > 1 else [])


def _hex(value: bytes | str) -> str:
    return (value.hex() if isinstance(value, bytes) else value)[:DIGITS]


def _reported(made: dict[str, Any]) -> dict[str, Any]:
    """Without what is None."""
    return {name: value for name, value in made.items() if value is not None}
