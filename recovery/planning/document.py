"""The state of a cluster as people write it (STATE.yaml), and a proposal as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from recovery.planning.alternatives import Alternative
from recovery.planning.cluster import DAY, ClusterState, TaskState
from recovery.planning.layouts import Hardware, Layout, Transformer
from recovery.planning.pipeline.cost import PipelineProfile, parse_profile
from recovery.planning.pipeline.model import PipelineError
from recovery.planning.placement import Site
from recovery.planning.proposal import Proposal
from recovery.planning.tasks import ClusterRates, PlanError
from recovery.planning.throughput import Point, Sizes, Throughput, throughput

__all__ = ["alternative_document", "expand", "layout_of", "model_of", "parse_state", "pipeline_of", "proposal_document"]

TASK_KEYS = {
    "name",
    "nodes",
    "weight",
    "minimum",
    "maximum",
    "step",
    "transition_seconds",
    "restart_seconds",
    "replica_nodes",
    "held",
    "waiting",
    "pipeline_schedule",
    "throughput",
    "step_seconds",
    "flops_per_step",
    "model",
    "layouts",
}
RANGE = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<first>\d+)-(?P<last>\d+)\](?P<tail>[^\[\]]*)$")


def expand(names: object) -> Iterator[str]:
    """Node names of a text such as `n[001-128]`, a name, or a list of such. Raises PlanError."""
    if isinstance(names, list | tuple):
        for name in names:
            yield from expand(name)
        return
    text = str(names)
    found = RANGE.match(text)
    if found is None:
        if not text or "[" in text or any(letter.isspace() for letter in text):
            raise PlanError(f"{text!r} is no node name and no range such as n[1-16]")
        yield text
        return
    first, last, width = int(found["first"]), int(found["last"]), len(found["first"])
    if last < first or last - first > 100_000:
        raise PlanError(f"{text!r}: the range ends before it begins, or is too long")
    for number in range(first, last + 1):
        yield f"{found['head']}{number:0{width}d}{found['tail']}"


def model_of(document: Mapping[str, Any], where: str) -> Transformer:
    """Raises PlanError, which names the field."""
    names = ("layers", "hidden", "heads", "sequence", "vocabulary", "global_batch")
    return Transformer(**{name: _count(document, name, f"{where}: model", 1) for name in names})


def layout_of(document: Mapping[str, Any], where: str) -> Layout:
    names = ("tensor", "pipeline", "data", "micro_batch")
    return Layout(*(_count({"micro_batch": 1, **document}, name, f"{where}: layout", 1) for name in names))


def parse_state(document: object) -> ClusterState:
    """The state that the document describes. Raises PlanError with one sentence that says where and what is wrong."""
    top = _mapping(document, "the state", {"hardware", "nodes", "tasks", "node_mtbf_days", "repair_hours"})
    hardware = _hardware(top.get("hardware") or {})
    sites: dict[str, Site] = {}
    for entry in _list(top, "nodes", "the state"):
        fields = _mapping(entry, "an entry of nodes", {"names", "switch", "spare", "isolated"})
        for name in expand(fields.get("names", ())):
            if name in sites:
                raise PlanError(f"node {name} is listed twice")
            switch = None if fields.get("switch") is None else str(fields["switch"])
            sites[name] = Site(name, switch, not fields.get("isolated", False), bool(fields.get("spare", False)))
    tasks = tuple(_task(entry, hardware, len(sites)) for entry in _list(top, "tasks", "the state"))
    mtbf = _number(top, "node_mtbf_days", "the state", 90.0)
    repair = _number(top, "repair_hours", "the state", 48.0)
    return ClusterState(sites, tasks, ClusterRates(mtbf * DAY), repair * 3600)


def _hardware(document: object) -> Hardware:
    names = ("gpus_per_node", "peak_flops", "memory_bytes", "bandwidth_in_node", "bandwidth_of_node")
    fields = _mapping(document, "hardware", set(names))
    usual = Hardware()
    given = {name: _number(fields, name, "hardware", getattr(usual, name)) for name in names[1:]}
    return Hardware(_count({"gpus_per_node": usual.gpus_per_node, **fields}, "gpus_per_node", "hardware", 1), **given)


def _task(entry: object, hardware: Hardware, nodes_in_all: int) -> TaskState:
    fields = _mapping(entry, "an entry of tasks", TASK_KEYS)
    name = str(fields.get("name") or "")
    if not name:
        raise PlanError("an entry of tasks has no name")
    where = f"task {name}"
    nodes = tuple(expand(fields.get("nodes", ())))
    sizes = Sizes(
        _count({"minimum": 1, **fields}, "minimum", where, 1),
        None if fields.get("maximum") is None else _count(fields, "maximum", where, 1),
        _count({"step": 1, **fields}, "step", where, 1),
    )
    curve = _curve(fields, where, sizes, max(nodes_in_all, len(nodes)), hardware)
    at_present = curve.layouts.get(len(nodes))
    usual = 1 if at_present is None else at_present.replica_nodes(hardware)
    return TaskState(
        name,
        curve.values,
        nodes,
        _number(fields, "weight", where, 1.0),
        sizes.minimum,
        _number(fields, "transition_seconds", where, 300.0, least=0.0),
        _number(fields, "restart_seconds", where, 900.0, least=0.0),
        _count({"replica_nodes": usual, **fields}, "replica_nodes", where, 1),
        None if not fields.get("held") else str(fields["held"]),
        waiting=bool(fields.get("waiting", False)),
        pipeline=None if fields.get("pipeline_schedule") is None else pipeline_of(fields["pipeline_schedule"], where),
    )


def pipeline_of(document: object, where: str) -> PipelineProfile:
    """Raises PlanError."""
    try:
        return parse_profile(document)
    except PipelineError as problem:
        raise PlanError(f"{where}: {problem}") from None


def _curve(fields: Mapping[str, Any], where: str, sizes: Sizes, up_to: int, hardware: Hardware) -> Throughput:
    model = None if fields.get("model") is None else model_of(_mapping(fields["model"], f"{where}: model"), where)
    flops = None if fields.get("flops_per_step") is None else _number(fields, "flops_per_step", where, 0.0)
    points = []
    for units, seconds in _sizes(fields, "step_seconds", where):
        points.append(Point(units, seconds))
    for units, rate in _sizes(fields, "throughput", where):
        # A throughput is a step time of whatever a step is taken to be.
        flops = flops or (model.flops if model is not None else 1e15)
        points.append(Point(units, flops / rate))
    allowed = None
    if fields.get("layouts") is not None:
        pairs = [_mapping(pair, f"{where}: layouts", {"tensor", "pipeline"}) for pair in _list(fields, "layouts", where)]
        allowed = [(_count(pair, "tensor", where, 1), _count(pair, "pipeline", where, 1)) for pair in pairs]
    try:
        return throughput(points, flops, sizes, up_to, model, hardware, allowed)
    except PlanError as problem:
        raise PlanError(f"{where}: {problem}; give throughput, step_seconds with flops_per_step, or model") from None


def _sizes(fields: Mapping[str, Any], name: str, where: str) -> Iterator[tuple[int, float]]:
    for units, value in _mapping(fields.get(name) or {}, f"{where}: {name}").items():
        if not str(units).isdigit() or int(units) < 1:
            raise PlanError(f"{where}: {name}: {units!r} is no number of nodes")
        yield int(units), _number({"value": value}, "value", f"{where}: {name} at {units} nodes", 0.0)


def _mapping(value: object, where: str, keys: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} is no mapping of names to values")
    unknown = sorted(str(key) for key in value if keys is not None and key not in keys)
    if unknown:
        raise PlanError(f"{where}: {unknown[0]!r} is not known; there are {', '.join(sorted(keys or ()))}")
    return value


def _list(fields: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise PlanError(f"{where}: {name} is a list")
    return value


def _count(fields: Mapping[str, Any], name: str, where: str, least: int) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"{where}: {name} is a whole number of at least {least}, not {value!r}")
    return value


def _number(fields: Mapping[str, Any], name: str, where: str, usual: float, least: float | None = None) -> float:
    value = fields.get(name, usual)
    try:
        # YAML reads 3e14 as a text.
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not (number > 0 if least is None else number >= least) or number == float("inf"):
        raise PlanError(f"{where}: {name} is a number above 0, not {value!r}")
    return number


def alternative_document(item: Alternative) -> dict[str, Any]:
    return {
        "kind": item.kind.value,
        "says": item.says,
        "against": item.against,
        "targets": dict(item.targets),
        "moves_others": list(item.moves_others),
        "accumulated": item.accumulated,
        "mean_waf": item.mean_waf,
        "waf": [{"seconds": segment.seconds, "waf": segment.waf} for segment in item.segments],
    }


def proposal_document(proposal: Proposal) -> dict[str, Any]:
    """One JSON document, version 1."""
    return {
        "version": 1,
        "triggers": [str(trigger) for trigger in proposal.triggers],
        "stamp": proposal.before.stamp,
        "from_table": proposal.from_table,
        "horizon_seconds": proposal.horizon,
        "chosen": proposal.chosen.kind.value,
        "why": proposal.why,
        "changed": list(proposal.changed),
        "waf": {
            "before": proposal.waf_before,
            "undone": proposal.waf_undone,
            "proposed": proposal.waf_proposed,
            "gained": proposal.gained,
            "cost": proposal.cost,
        },
        "tasks": [
            {
                "name": task.name,
                "weight": task.weight,
                "minimum": task.minimum,
                "hit": task.hit,
                "held": task.held,
                "current": list(task.nodes),
                "proposed": list(proposal.placement.nodes.get(task.name, ())),
                "waf_current": task.worth(len(task.nodes)),
                "waf_proposed": task.worth(proposal.chosen.targets.get(task.name, 0)),
                "planned_units": proposal.allocation.units.get(task.name, 0),
                "transition_seconds": task.transition_seconds,
            }
            for task in proposal.after.placed
        ],
        "moves": [{"node": move.node, "from": move.giver, "to": move.taker} for move in proposal.placement.moves],
        "idle": sorted(
            {name for name, site in proposal.after.sites.items() if site.usable}
            - {node for nodes in proposal.placement.nodes.values() for node in nodes}
        ),
        "alternatives": [alternative_document(item) for item in proposal.alternatives],
    }
