"""Agents in shadow: another controller acts."""

from safe_psrl_conformance.check import check, require, same
from safe_psrl_conformance.problem import HORIZON, agent_spec, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2

COSTLY = seen(0, 1, 0)  # half a unit of energy in each step


def _set_mode(wire: Wire, name: str, mode: str, **fields: object) -> admin_pb2.AgentStatus:
    request = admin_pb2.UpdateAgentRequest(agent=name, update=model_pb2.AgentSpec(mode=mode), **fields)  # type: ignore[arg-type]
    request.update_mask.paths.append("mode")
    status: admin_pb2.AgentStatus = wire.call(wire.admin.UpdateAgent, request).status
    return status


@check("every action and policy of a shadow agent is advisory, whatever the call, also those of its fallback policy")
def advisory(wire: Wire) -> None:
    name = wire.create(spec=agent_spec(fallback=True, mode="shadow"))
    same("StartEpisode", wire.start(name, request_id="a", state=0, with_policy=True).advisory, True)
    same("GetPolicy", wire.call(wire.admin.GetPolicy, admin_pb2.GetPolicyRequest(agent=name)).advisory, True)
    same("StartEpisode, repeated", wire.start(name, request_id="a", state=0).advisory, True)
    same("GetAction", wire.act(name, 0).advisory, True)
    same("Step", wire.step(name, COSTLY, episode=1, step=0).advisory, True)
    whole = wire.report_episode(
        name, 1, [COSTLY] * HORIZON, next=control_pb2.StartEpisodeRequest(agent=name, state=0, request_id="b")
    )
    same("ReportEpisode", whole.next.advisory, True)
    following = control_pb2.StartEpisodeRequest(agent=name, state=0, request_id="d", with_policy=True)
    streamed = wire.stream(
        name,
        [
            control_pb2.StepStreamRequest(step=control_pb2.StepRequest(agent=name, episode=2, step=0, transition=COSTLY)),
            control_pb2.StepStreamRequest(
                start_episode=control_pb2.StartEpisodeRequest(agent=name, state=0, request_id="c", abandon_open=True)
            ),
            control_pb2.StepStreamRequest(
                report_episode=control_pb2.ReportEpisodeRequest(
                    agent=name, episode=3, transitions=[COSTLY] * HORIZON, next=following
                )
            ),
        ],
    )
    same("Step on a stream", streamed[0].step.advisory, True)
    same("StartEpisode on a stream", streamed[1].start_episode.advisory, True)
    same("ReportEpisode on a stream", streamed[2].report_episode.next.advisory, True)
    wire.call(wire.admin.PauseAgent, admin_pb2.PauseAgentRequest(agent=name))
    inside = wire.act(name, 0, episode=4)
    same("a fallback action", (inside.fallback, inside.advisory), (True, True))
    wire.end(name, 4)
    outside = wire.act(name, 0)
    same("a fallback action outside any episode", (outside.fallback, outside.advisory), (True, True))


@check("episodes started in shadow are learned, and not counted otherwise; a live agent's actions are not advisory")
def counted_apart(wire: Wire) -> None:
    name = wire.create(spec=agent_spec(mode="shadow"))
    wire.start(name, request_id="a")
    wire.report_episode(name, 1, [seen(0, 1, 1), seen(1, 2, 1), seen(1, 2, 1)])
    status = wire.status(name)
    same("mode, shadow episodes and transitions", (status.mode, status.shadow_episodes, status.transitions), ("shadow", 1, 3))
    same("completed episodes and overridden actions", (status.completed_episodes, status.overridden_actions), (0, 0))
    same("strong violation", [one.strong_violation for one in status.constraints], [0.0, 0.0])
    wire.start(name, request_id="b")
    same("mode", _set_mode(wire, name, "live", force=True).mode, "live")
    same("Step of an episode started in shadow", wire.step(name, COSTLY, episode=2, step=0).advisory, True)
    wire.report_episode(name, 2, [COSTLY] * HORIZON)
    same("shadow episodes", wire.status(name).shadow_episodes, 2)
    same("StartEpisode of a live agent", wire.start(name, request_id="c", state=0).advisory, False)
    policy = admin_pb2.GetPolicyRequest(agent=name)
    same("GetPolicy of a live agent", wire.call(wire.admin.GetPolicy, policy).advisory, False)
    _set_mode(wire, name, "shadow")
    same("GetAction once it is demoted", wire.act(name, 0, episode=3).advisory, True)
    same("StartEpisode, repeated", wire.start(name, request_id="c", state=0).advisory, True)
    same("GetPolicy", wire.call(wire.admin.GetPolicy, policy).advisory, True)


@check("CompareAgent returns the incumbent, the plan and a verdict; without PROMOTE, promotion is NOT_PROMOTABLE unless forced")
def promotion(wire: Wire) -> None:
    name = wire.create(spec=agent_spec(mode="shadow"))
    for number in (1, 2):
        wire.start(name, request_id=str(number))
        wire.report_episode(name, number, [COSTLY] * HORIZON)
    found = wire.call(wire.admin.CompareAgent, admin_pb2.CompareAgentRequest(agent=name))
    same("shadow episodes", found.shadow_episodes, 2)
    same("the incumbent's energy", [found.incumbent.costs[0].mean, found.incumbent.costs[0].error], [1.5, 0.0])
    same("the plan's costs", len(found.plan.costs), 2)
    require(found.verdict == admin_pb2.PROMOTION_VERDICT_TOO_FEW_EPISODES, f"the verdict is {found.verdict}")
    require(found.verdict_text != "", "there is no verdict in words")
    wire.refused_unchanged(name, "FAILED_PRECONDITION NOT_PROMOTABLE", _set_mode, wire, name, "live")
    same("mode", _set_mode(wire, name, "live", force=True, reason="conformance").mode, "live")
