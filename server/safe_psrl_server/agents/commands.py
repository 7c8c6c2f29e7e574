"""The calls of environments as commands on agents: which decision, in which order, with what reply. Independent of gRPC."""

from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents import decisions, epochs
from safe_psrl_server.agents.decisions import Acted, Decision, PlanNeeded, Reply, Reported
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.episode_events import TimedPlan, detecting, observing
from safe_psrl_server.agents.epochs import Begun, ReportedPart
from safe_psrl_server.agents.record import PAUSED_BY_DRIFT, AgentRecord
from safe_psrl_server.agents.reports import correct, report_all
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.validation import (
    check_first_state,
    check_incarnation,
    find_episode,
    paused,
)
from safe_psrl_server.errors import FailedPreconditionError, InvalidArgumentError


class ReportedEpisode(NamedTuple):
    """The result of reporting a trajectory."""

    duplicates: int  # transitions that were reported before
    done: bool  # the episode is complete
    next: events_pb2.EpisodeStarted | None  # if requested


class AgentCommands:
    """The methods return the futures of `Runtime.submit`: a call is enqueued when its method returns."""

    def __init__(self, agents: AgentService) -> None:
        self.agents = agents

    def start_episode(self, request: control_pb2.StartEpisodeRequest) -> "Future[Begun]":
        def decide(record: AgentRecord) -> Decision[Begun] | PlanNeeded[Begun]:
            repeated = decisions.repeated_start(record, request)
            if record.definition.continuing is not None:
                place = epochs.running(record, request, repeated)
                if place is not None:
                    return Decision([], epochs.begun_at(record, place, with_policy=request.with_policy))
            elif repeated is not None:
                return Decision([], Begun(decisions.start_of(record, repeated)))
            closing = decisions.make_room(record, request.abandon_open, self.agents.now_micros())

            def finish(planned: TimedPlan) -> Decision[Begun]:
                return self._begun(record, planned, request, closing, partial(begun, record, request))

            return plan_needed(record, request.state, finish)

        return self.agents.runtime.submit(request.agent, decide)

    async def get_action(self, request: control_pb2.GetActionRequest) -> Acted:
        record = self.agents.resident_record(request.agent) or await self.agents.record(request.agent)
        acted = decisions.act(record, request)
        if acted is not None:
            return acted

        def decide(record: AgentRecord) -> Decision[None] | PlanNeeded[None]:
            if decisions.act(record, request) is not None:  # another call started an episode meanwhile
                return Decision([], None)
            check_first_state(record, request.state)
            if request.HasField("step") and request.step != 0:
                raise FailedPreconditionError(f"no episode is open, so there is no step {request.step}", "NO_EPISODE")
            closing = decisions.make_room(record, False, self.agents.now_micros())
            start = control_pb2.StartEpisodeRequest(state=request.state)

            def finish(planned: TimedPlan) -> Decision[None]:
                return self._begun(record, planned, start, closing, lambda _started: None)

            return plan_needed(record, request.state, finish)

        await self.agents.runtime.submit(request.agent, decide)
        acted = decisions.act(await self.agents.record(request.agent), request)
        if acted is None:
            raise FailedPreconditionError("the episode that was started has ended already; call again", "NO_EPISODE")
        return acted

    def report(
        self, request: "control_pb2.ReportTransitionRequest | control_pb2.StepRequest", *, wants_action: bool
    ) -> "Future[Reported]":
        """One transition. If the next action is requested, too, a paused agent needs a fallback policy."""
        if not request.HasField("transition"):
            raise InvalidArgumentError("transition", "is missing")
        now = self.agents.now_micros()
        report = partial(
            decisions.report,
            number=request.episode if request.HasField("episode") else None,
            step=request.step if request.HasField("step") else None,
            transition=request.transition,
            now_micros=now,
            incarnation=request.incarnation,
            wants_action=wants_action,
        )

        def decide(record: AgentRecord) -> Decision[Reported] | PlanNeeded[Reported]:
            decision = report(record)
            if record.definition.continuing is None or not decision.reply.is_last or decision.reply.duplicate:
                return decision
            return epochs.following(decision, record, [decision.reply.seen], self.agents.meter, now)

        return self.agents.runtime.submit(request.agent, decide)

    def report_episode(self, request: control_pb2.ReportEpisodeRequest) -> "Future[ReportedEpisode | ReportedPart]":
        """A trajectory, and the start of the next episode if requested: both, or neither."""
        following = request.next if request.HasField("next") else None
        if following is not None and following.agent not in {"", request.agent}:
            raise InvalidArgumentError("next.agent", f"must be {request.agent!r} or left out, got {following.agent!r}")

        def decide(record: AgentRecord) -> Decision[Any] | PlanNeeded[Any]:
            check_incarnation(record, request.incarnation)
            episode, now = find_episode(record, request.episode), self.agents.now_micros()
            if episode.is_epoch:
                return epochs.report_part(record, episode, request, self.agents.meter, now)
            fresh, duplicates, done, _ = report_all(record, episode, request.transitions, request.first_step)
            events = observing(record, episode, fresh, done, now) if fresh else []
            if following is None:
                return Decision(events, ReportedEpisode(duplicates, done, None))
            if events and events[-1].WhichOneof("kind") == "agent_paused":
                return refused(events, events[-1].agent_paused.reason)
            if not done:
                raise InvalidArgumentError("next", "needs transitions up to the end of the episode, or EndEpisode before it")
            repeated = decisions.repeated_start(record, following)
            if repeated is not None:
                return Decision(events, ReportedEpisode(duplicates, done, decisions.start_of(record, repeated)))
            closing = decisions.make_room(record, following.abandon_open, now, ended=episode.number)

            def finish(planned: TimedPlan) -> Decision[ReportedEpisode]:
                return self._begun(
                    record, planned, following, closing, lambda started: ReportedEpisode(duplicates, done, started), events
                )

            return PlanNeeded(record.definition.learner, record.state_after(fresh), finish)

        return self.agents.runtime.submit(request.agent, decide)

    def correct_signal(self, request: control_pb2.CorrectSignalRequest) -> "Future[bool]":
        """Whether the same correction was made before."""
        decide = partial(correct, request=request, now_micros=self.agents.now_micros())
        return self.agents.runtime.submit(request.agent, decide)

    def end_episode(self, request: control_pb2.EndEpisodeRequest) -> "Future[Episode]":
        now = self.agents.now_micros()
        decide = partial(
            decisions.end_episode, number=request.episode, end=request.end, now_micros=now, incarnation=request.incarnation
        )
        return self.agents.runtime.submit(request.agent, decide)

    def _begun(
        self,
        record: AgentRecord,
        planned: TimedPlan,
        request: control_pb2.StartEpisodeRequest,
        closing: list[events_pb2.Event],
        reply: Callable[[events_pb2.EpisodeStarted], Reply],
        reported: Sequence[events_pb2.Event] = (),
    ) -> Decision[Reply]:
        """The start of an episode after the `reported` one, and after `closing` others. Drift may pause the agent instead."""
        now = self.agents.now_micros()
        detected = detecting(record, planned.plan, now)
        if detected and detected[0].drift_detected.paused:
            return refused([*reported, *detected], PAUSED_BY_DRIFT)
        event = epochs.started(record, planned, request, now)
        number = event.episode_started.episode
        self.agents.meter.planned(record.name, number, planned.seconds, satisfiable=planned.plan.kernel_satisfiable)
        return Decision([*reported, *closing, *detected, event], reply(event.episode_started))


def plan_needed(record: AgentRecord, start: int, finish: Callable[[TimedPlan], Decision[Reply]]) -> PlanNeeded[Reply]:
    """The decision to plan for the record as it is; in a continuing task, from the state `start`."""
    definition = record.definition
    return PlanNeeded(definition.continuing or definition.learner, record.state, finish, start)


def begun(record: AgentRecord, request: control_pb2.StartEpisodeRequest, started: events_pb2.EpisodeStarted) -> Begun:
    """The reply to a start that is not a repetition."""
    if record.definition.continuing is None:
        return Begun(started)
    place = epochs.place_of(Episode(started, record.definition, 0))
    return epochs.begun_at(record, place, with_policy=request.with_policy)


def refused(events: list[events_pb2.Event], reason: str) -> Decision[Any]:
    """A rejected start, whose `events` pause the agent."""
    return Decision(events, None, paused(reason))
