"""Continuing tasks: an epoch is stored and served like an episode. The step that ends an epoch also starts the next one.

Pure, like `decisions`. While the agent is paused no epoch starts: an epoch that ends then has no successor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from safe_psrl.methods.epoch import action_draws
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.decisions import (
    Acted,
    Decision,
    PlanNeeded,
    Reply,
    Reported,
    action_at,
    ends_at,
    is_advisory,
    start_of,
)
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.episode_events import TimedPlan, detecting, observing, starting
from safe_psrl_server.agents.planner import PLANNED_BY
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.reports import report_all
from safe_psrl_server.agents.validation import check_may_act, paused
from safe_psrl_server.errors import FailedPreconditionError, InvalidArgumentError
from safe_psrl_server.metrics.meter import Meter


class Place(NamedTuple):
    """The position of a task: the epoch, its next step, the state."""

    epoch: Episode
    step: int
    state: int


class ReportedPart(NamedTuple):
    """The result of reporting steps of an epoch."""

    duplicates: int
    done: bool
    last: Reported


class Begun(NamedTuple):
    """How an episode was started; for a continuing task also its current position."""

    started: events_pb2.EpisodeStarted
    state: int = 0
    acted: Acted | None = None
    draws: Sequence[float] = ()  # for a client that plays the policy itself


def begun_at(record: AgentRecord, place: Place, *, with_policy: bool) -> Begun:
    draws = draws_at(record, place) if with_policy else ()
    return Begun(start_of(record, place.epoch), place.state, acted_at(record, place), draws)


def draws_at(record: AgentRecord, place: Place) -> Sequence[float]:
    """The random numbers of the actions from `place` on, for as many steps as a client may play without reporting.

    These are as many as were observed before the epoch, up to `max_epoch_steps`.
    """
    first_step = place.epoch.started.first_step
    last = min(record.definition.message.max_epoch_steps, max(1, first_step))
    draws = np.empty(max(1, last - place.step))
    action_draws(record.definition.learner.seed, first_step + place.step, draws)
    numbers: list[float] = draws.tolist()
    return numbers


def place_of(epoch: Episode) -> Place:
    """The current position of an open epoch, or the position in which a closed one ended."""
    last = epoch.transitions[-1].next_state if epoch.transitions else epoch.started.state
    return Place(epoch, epoch.next_step, last)


def next_start(record: AgentRecord) -> int:
    """The state in which the next epoch starts if nothing more is reported: the current or the likeliest initial state."""
    latest = record.latest_episode
    return int(record.definition.spec.initial_distribution.argmax()) if latest is None else place_of(latest).state


def running(record: AgentRecord, request: control_pb2.StartEpisodeRequest, repeated: Episode | None) -> Place | None:
    """The task's position, if the reply to `request` is that position; None if `request` starts an epoch.

    Raises if it can do neither.
    """
    if request.with_policy and record.paused:
        raise paused(record.pause_reason)
    if not request.HasField("state"):
        raise InvalidArgumentError("state", "is missing: a continuing task is planned from where it is")
    open_epochs = record.open_episodes
    if repeated is not None and not open_epochs:
        raise FailedPreconditionError(f"epoch {repeated.number} has ended: start with another request_id", "EPISODE_CLOSED")
    if not open_epochs or (request.abandon_open and repeated is None):
        return None
    check_may_act(record)
    place = place_of(open_epochs[0])
    if repeated is None and place.state != request.state:
        raise InvalidArgumentError(
            "state",
            f"must be {place.state}, where the task is, got {request.state}; set abandon_open after a reset",
            "STATE_MISMATCH",
            expected_state=place.state,
        )
    return place


def acted_at(record: AgentRecord, place: Place) -> Acted:
    """The action at `place`, in an epoch that has started."""
    action, fallback = action_at(record, place.epoch, place.step, place.state)
    advisory = is_advisory(record, place.epoch)
    return Acted(action, place.epoch.number, place.step, fallback, record.created_micros, advisory)


def successor(reported: Reported) -> Episode | None:
    """The epoch that a reported step started, by ending the one before; None if there is none."""
    following = reported.record.episodes.get(reported.episode.number + 1)
    return following if following is not None and following.started.state == reported.next_state else None


def following(
    decision: Decision[Reply], record: AgentRecord, steps: Sequence[Transition], meter: Meter, now_micros: int
) -> Decision[Reply] | PlanNeeded[Reply]:
    """`decision` for a report of `steps`, followed by the start of the next epoch if the steps end one.

    While the agent is paused, no epoch starts.
    """
    learner = record.definition.continuing
    last = decision.events[-1].WhichOneof("kind") if decision.events else ""
    if learner is None or record.paused or last != "episode_ended":  # nothing has ended, or a guard has paused the agent
        return decision

    start = steps[-1].next_state

    def finish(planned: TimedPlan) -> Decision[Reply]:
        detected = detecting(record, planned.plan, now_micros)
        if detected and detected[0].drift_detected.paused:
            return Decision([*decision.events, *detected], decision.reply)
        request = control_pb2.StartEpisodeRequest(state=start)
        event = started(record, planned, request, now_micros, observed=len(steps))
        meter.planned(record.name, event.episode_started.episode, planned.seconds, satisfiable=planned.plan.kernel_satisfiable)
        return Decision([*decision.events, *detected, event], decision.reply)

    return PlanNeeded(learner, record.state_after(steps), finish, start)


def started(
    record: AgentRecord, planned: TimedPlan, request: control_pb2.StartEpisodeRequest, now_micros: int, observed: int = 0
) -> events_pb2.Event:
    """The event that starts the planned episode or epoch, after `observed` steps that the same call reports."""
    event = starting(record, planned, request, PLANNED_BY, now_micros)
    if record.definition.spec.is_continuing:
        event.episode_started.first_step = record.totals.transitions + observed
    return event


def report_part(
    record: AgentRecord, episode: Episode, request: control_pb2.ReportEpisodeRequest, meter: Meter, now_micros: int
) -> Decision[ReportedPart] | PlanNeeded[ReportedPart]:
    """Steps of an epoch that a client played locally. If they end the epoch, they start the next one."""
    fresh, duplicates, done, last = report_all(record, episode, request.transitions, request.first_step)
    assert last is not None  # noqa: S101  # there is a transition
    if request.next.HasField("state") and request.next.state != last.next_state:
        raise InvalidArgumentError("next.state", f"must be {last.next_state}, where the transitions led, or left out")
    ends = done if fresh else ends_at(episode, last.step)
    reported = Reported(episode, last.step, last, not fresh, done, ends, record)
    events = observing(record, episode, fresh, done, now_micros) if fresh else []
    return following(Decision(events, ReportedPart(duplicates, done, reported)), record, fresh, meter, now_micros)
