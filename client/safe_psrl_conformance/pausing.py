"""Paused agents."""

from safe_psrl_conformance.check import check, same
from safe_psrl_conformance.problem import FALLBACK_ACTION, agent_spec, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2


def _pause(wire: Wire, name: str) -> admin_pb2.AgentStatus:
    request = admin_pb2.PauseAgentRequest(agent=name, reason="conformance")
    status: admin_pb2.AgentStatus = wire.call(wire.admin.PauseAgent, request).status
    return status


@check(
    "no episode begins and no action is given while paused: AGENT_PAUSED, until ResumeAgent; repeating either changes nothing"
)
def pause_and_resume(wire: Wire) -> None:
    name = wire.create()
    paused = _pause(wire, name)
    same("the condition", paused.condition, admin_pb2.AGENT_CONDITION_PAUSED)
    same("why", paused.condition_reason, "conformance")
    same("the version after pausing again", _pause(wire, name).version, paused.version)
    wire.refused_unchanged(name, "FAILED_PRECONDITION AGENT_PAUSED", wire.start, name, request_id="a")
    wire.refused_unchanged(name, "FAILED_PRECONDITION AGENT_PAUSED", wire.act, name, 0)
    resume = admin_pb2.ResumeAgentRequest(agent=name)
    resumed = wire.call(wire.admin.ResumeAgent, resume).status
    same("the version after resuming again", wire.call(wire.admin.ResumeAgent, resume).status.version, resumed.version)
    same("the first episode", wire.start(name, request_id="a").episode, 1)


@check("a paused agent with a fallback policy plays it, inside an episode and outside, and reports so")
def fallback(wire: Wire) -> None:
    name = wire.create(spec=agent_spec(fallback=True))
    _pause(wire, name)
    outside = wire.act(name, 2)
    same("outside: action, episode, fallback", (outside.action, outside.episode, outside.fallback), (FALLBACK_ACTION, 0, True))
    wire.call(wire.admin.ResumeAgent, admin_pb2.ResumeAgentRequest(agent=name))
    same("the first episode", wire.start(name, request_id="a").episode, 1)
    _pause(wire, name)
    inside = wire.step(name, seen(), episode=1, step=0)
    same("inside: action and fallback", (inside.action, inside.fallback), (FALLBACK_ACTION, True))


@check("while paused, an open episode accepts reports; without a fallback policy it rejects GetAction and Step")
def reports_while_paused(wire: Wire) -> None:
    name = wire.create_started()
    _pause(wire, name)
    wire.refused_unchanged(name, "FAILED_PRECONDITION AGENT_PAUSED", wire.act, name, 0, episode=1)
    wire.refused_unchanged(name, "FAILED_PRECONDITION AGENT_PAUSED", wire.step, name, seen(), episode=1, step=0)
    wire.report(name, seen(), episode=1, step=0)
    same("transitions", wire.status(name).transitions, 1)
