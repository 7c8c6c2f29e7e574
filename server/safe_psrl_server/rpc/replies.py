"""Replies of the data plane, written in place: copying a message costs as much as building it."""

from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.agents.commands import ReportedEpisode
from safe_psrl_server.agents.decisions import Reported, action_at, is_advisory
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.epochs import Begun, Place, ReportedPart, begun_at, successor
from safe_psrl_server.metrics.meter import Meter


def write_step(meter: Meter, reported: Reported, reply: control_pb2.StepResponse) -> None:
    meter.repeated(reported.duplicate)
    reply.duplicate, reply.episode, reply.step = reported.duplicate, reported.episode.number, reported.step
    reply.episode_done = reported.is_last
    following = next_place(reported)
    if following is None:
        return
    episode, step = following
    reply.action, reply.fallback = action_at(reported.record, episode, step, reported.next_state)
    reply.advisory = is_advisory(reported.record, episode)
    if episode.is_epoch:
        reply.next_episode, reply.next_step = episode.number, step
    meter.acted(fallback=reply.fallback)


def next_place(reported: Reported) -> tuple[Episode, int] | None:
    """The episode and step of the next action; None after an episode. After an epoch it is the first of the next epoch."""
    if not reported.is_last:
        return reported.episode, reported.step + 1
    following = successor(reported) if reported.episode.is_epoch else None
    return None if following is None else (following, 0)


def write_reported(meter: Meter, reported: Reported, reply: control_pb2.ReportTransitionResponse) -> None:
    meter.repeated(reported.duplicate)
    reply.duplicate, reply.episode, reply.step = reported.duplicate, reported.episode.number, reported.step
    reply.episode_done = reported.done
    following = next_place(reported)
    if following is not None and following[0].is_epoch:
        reply.next_episode, reply.next_step = following[0].number, following[1]
        reply.episode_done = reported.is_last


def write_report(
    meter: Meter,
    reported: ReportedEpisode | ReportedPart,
    request: control_pb2.ReportEpisodeRequest,
    reply: control_pb2.ReportEpisodeResponse,
) -> None:
    meter.repeated(reported.duplicates)
    reply.duplicates, reply.episode_done = reported.duplicates, reported.done
    if isinstance(reported, ReportedPart):
        following = next_place(reported.last)
        if following is not None and request.HasField("next"):
            place = Place(*following, reported.last.next_state)
            write_start(begun_at(reported.last.record, place, with_policy=request.next.with_policy), request.next, reply.next)
    elif reported.next is not None:
        write_start(Begun(reported.next), request.next, reply.next)


def write_start(begun: Begun, request: control_pb2.StartEpisodeRequest, reply: control_pb2.StartEpisodeResponse) -> None:
    started = begun.started
    policy = started.policy
    reply.episode, reply.horizon, reply.predicted_reward = started.episode, policy.horizon, started.predicted_reward
    reply.incarnation, reply.advisory = started.incarnation, started.shadow
    reply.predicted_costs.extend(started.predicted_costs)
    reply.dual_variables.extend(started.next_dual_variables)
    if begun.acted is not None:
        reply.action, reply.step, reply.state = begun.acted.action, begun.acted.step, begun.state
    elif request.HasField("state"):
        reply.action = policy.actions[request.state]  # of step 0
    if request.with_policy:
        reply.policy.CopyFrom(policy)
        reply.draws.extend(begun.draws)
