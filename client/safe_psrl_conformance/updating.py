"""Changes of definitions, and their log."""

from safe_psrl_conformance.check import check, same
from safe_psrl_conformance.problem import agent_spec
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2, events_pb2


def _request(name: str, budget: float, **fields: object) -> admin_pb2.UpdateAgentRequest:
    request = admin_pb2.UpdateAgentRequest(agent=name, update=agent_spec(), reason="conformance", **fields)  # type: ignore[arg-type]
    constraint = request.update.cmdp.constraints[0]
    constraint.cost_budget = budget
    request.update_mask.paths.append(f"cmdp.constraints.{constraint.name}.cost_budget")
    return request


@check("an update changes the definition once: repeating it changes nothing, and the log records who, what and why")
def update_once(wire: Wire) -> None:
    name = wire.create()
    budget = wire.status(name).constraints[0].cost_budget / 2
    request = _request(name, budget, expected_version=1)
    first = wire.call(wire.admin.UpdateAgent, request)
    same("changes", len(first.changes), 1)
    same("the budget", first.status.constraints[0].cost_budget, budget)
    same("the definition's version", first.status.definition_version, 2)
    again = wire.call(wire.admin.UpdateAgent, request)
    same("changes when repeated", (list(again.changes), again.status.version), ([], first.status.version))
    entry = wire.call(wire.admin.ListEvents, admin_pb2.ListEventsRequest(agent=name)).entries[0]
    same("the log", (entry.kind, entry.reason), (events_pb2.LOG_KIND_UPDATED, "conformance"))


@check("an update of an outdated definition is DEFINITION_CHANGED; one of a fixed field, or of no field, is INVALID_ARGUMENT")
def refused_updates(wire: Wire) -> None:
    name = wire.create()
    budget = wire.status(name).constraints[0].cost_budget / 2
    outdated = _request(name, budget, expected_version=7)
    wire.refused_unchanged(name, "FAILED_PRECONDITION DEFINITION_CHANGED", wire.call, wire.admin.UpdateAgent, outdated)
    fixed = admin_pb2.UpdateAgentRequest(agent=name, update=agent_spec())
    wire.refused_unchanged(name, "INVALID_ARGUMENT INVALID_ARGUMENT", wire.call, wire.admin.UpdateAgent, fixed)
    fixed.update_mask.paths.append("cmdp.horizon")
    wire.refused_unchanged(name, "INVALID_ARGUMENT INVALID_ARGUMENT", wire.call, wire.admin.UpdateAgent, fixed)


@check("a dry run changes nothing, and returns the next plan before and after")
def dry_run(wire: Wire) -> None:
    name = wire.create()
    before = wire.status(name)
    budget = before.constraints[0].cost_budget / 2
    tried = wire.call(wire.admin.UpdateAgent, _request(name, budget, dry_run=True))
    same("previews", (len(tried.before.costs), len(tried.after.costs)), (len(before.constraints),) * 2)
    same("the version", wire.status(name).version, before.version)
