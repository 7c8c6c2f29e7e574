"""Replies of the data plane, written in place: copying a message costs as much as building it."""

from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.commands import ReportedEpisode
from safe_psrl_server.agents.decisions import Reported, action_at
from safe_psrl_server.metrics.meter import Meter


def write_step(meter: Meter, reported: Reported, reply: control_pb2.StepResponse) -> None:
    meter.repeated(reported.duplicate)
    reply.duplicate, reply.episode, reply.step = reported.duplicate, reported.episode.number, reported.step
    if reported.is_last:
        reply.episode_done = True
        return
    reply.action, reply.fallback = action_at(reported.record, reported.episode, reported.step + 1, reported.next_state)
    meter.acted(fallback=reply.fallback)


def write_report(
    meter: Meter,
    reported: ReportedEpisode,
    request: control_pb2.ReportEpisodeRequest,
    reply: control_pb2.ReportEpisodeResponse,
) -> None:
    meter.repeated(reported.duplicates)
    reply.duplicates, reply.episode_done = reported.duplicates, reported.done
    if reported.next is not None:
        write_start(reported.next, request.next, reply.next)


def write_start(
    started: events_pb2.EpisodeStarted, request: control_pb2.StartEpisodeRequest, reply: control_pb2.StartEpisodeResponse
) -> None:
    policy = started.policy
    reply.episode, reply.horizon, reply.predicted_reward = started.episode, policy.horizon, started.predicted_reward
    reply.incarnation = started.incarnation
    reply.predicted_costs.extend(started.predicted_costs)
    reply.dual_variables.extend(started.next_dual_variables)
    if request.HasField("state"):
        reply.action = policy.actions[request.state]  # of step 0
    if request.with_policy:
        reply.policy.CopyFrom(policy)
