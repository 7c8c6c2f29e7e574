"""Errors report what is wrong, to people and to programs."""

from safe_psrl_conformance.check import check, require, same
from safe_psrl_conformance.problem import agent_spec, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2


@check("an error carries google.rpc.ErrorInfo with the domain, a reason, and metadata")
def details(wire: Wire) -> None:
    name = wire.new_name()
    found = wire.refused("NOT_FOUND AGENT_NOT_FOUND", wire.act, name, 0)
    same("metadata `agent`", found.metadata.get("agent"), name)
    require(bool(str(found)), "there is no message for people")


@check("INVALID_ARGUMENT names the field in google.rpc.BadRequest and in the metadata, and changes nothing")
def fields_are_named(wire: Wire) -> None:
    name = wire.create_started()
    mistakes = {
        "transition.state": seen(state=-1),
        "transition.action": seen(action=9),
        "transition.next_state": seen(next_state=4),
        "transition.reward": seen(reward=1.5),
        "transition.costs": seen(costs=[0.5]),
        "transition.costs[1]": seen(costs=[0.5, float("nan")]),
    }
    for field, transition in mistakes.items():
        found = wire.refused_unchanged(
            name, "INVALID_ARGUMENT INVALID_ARGUMENT", wire.report, name, transition, episode=1, step=0
        )
        same("the field of BadRequest", list(found.violations), [field])
        same("metadata `field`", found.metadata.get("field"), field)


@check("unavailable actions, impossible next states and impossible first states each have their own reason")
def impossible_steps(wire: Wire) -> None:
    name = wire.create_started()
    for transition, reason in (
        (seen(action=2), "ACTION_UNAVAILABLE"),
        (seen(1, 1, 3), "OUTSIDE_SUPPORT"),
        (seen(2, 0, 0), "NOT_AN_INITIAL_STATE"),
    ):
        wire.refused_unchanged(name, f"INVALID_ARGUMENT {reason}", wire.report, name, transition, episode=1, step=0)


@check("an invalid definition is rejected with the name of its field, and no agent is created")
def bad_definition(wire: Wire) -> None:
    name, spec = wire.new_name(), agent_spec()
    spec.cmdp.constraints[0].cost_budget = -1
    request = admin_pb2.CreateAgentRequest(agent=name, spec=spec)
    found = wire.refused("INVALID_ARGUMENT INVALID_ARGUMENT", wire.call, wire.admin.CreateAgent, request)
    require(any("cost_budget" in field for field in list(found.violations)), f"the fields named are {list(found.violations)}")
    wire.refused("NOT_FOUND AGENT_NOT_FOUND", wire.status, name)


@check("episodes that never existed are EPISODE_NOT_FOUND; reports while none is open are NO_EPISODE")
def missing_episodes(wire: Wire) -> None:
    name = wire.create()
    wire.refused("NOT_FOUND EPISODE_NOT_FOUND", wire.report, name, seen(), episode=5, step=0)
    wire.refused("FAILED_PRECONDITION NO_EPISODE", wire.report, name, seen())


@check("long invalid values are rejected like short ones: the status arrives complete")
def long_nonsense(wire: Wire) -> None:
    found = wire.refused("NOT_FOUND AGENT_NOT_FOUND", wire.act, wire.prefix + "x" * 20_000, 0)
    require(len(str(found)) < 4_000, f"the message has {len(str(found))} characters")
