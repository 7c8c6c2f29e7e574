"""The calls of environments as commands on agents: which decision, in which order, with what reply. Free of gRPC."""

from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.agents.decisions import Acted, Decision, PlanNeeded, Reply, Reported
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.episode_events import TimedPlan, detecting, observing, starting
from safe_psrl_server.agents.planner import PLANNED_BY
from safe_psrl_server.agents.record import PAUSED_BY_DRIFT, AgentRecord
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
    """Futures are those of `Runtime.submit`: a call is enqueued when its method returns."""

    def __init__(self, agents: AgentService) -> None:
        self.agents = agents

    def start_episode(self, request: control_pb2.StartEpisodeRequest) -> "Future[events_pb2.EpisodeStarted]":
        def decide(
            record: AgentRecord,
        ) -> Decision[events_pb2.EpisodeStarted] | PlanNeeded[events_pb2.EpisodeStarted]:
            repeated = decisions.repeated_start(record, request)
            if repeated is not None:
                return Decision([], repeated.started)
            closing = decisions.make_room(record, request.abandon_open, self.agents.now_micros())

            def finish(planned: TimedPlan) -> Decision[events_pb2.EpisodeStarted]:
                return self._begun(record, planned, request, closing, lambda started: started)

            return PlanNeeded(record.definition.learner, record.state, finish)

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

            return PlanNeeded(record.definition.learner, record.state, finish)

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
        decide = partial(
            decisions.report,
            number=request.episode if request.HasField("episode") else None,
            step=request.step if request.HasField("step") else None,
            transition=request.transition,
            now_micros=self.agents.now_micros(),
            incarnation=request.incarnation,
            wants_action=wants_action,
        )
        return self.agents.runtime.submit(request.agent, decide)

    def report_episode(self, request: control_pb2.ReportEpisodeRequest) -> "Future[ReportedEpisode]":
        """A trajectory, and the start of the next episode if requested: both, or neither."""
        following = request.next if request.HasField("next") else None
        if following is not None and following.agent not in {"", request.agent}:
            raise InvalidArgumentError("next.agent", f"must be {request.agent!r} or left out (is {following.agent!r})")

        def decide(record: AgentRecord) -> Decision[ReportedEpisode] | PlanNeeded[ReportedEpisode]:
            check_incarnation(record, request.incarnation)
            episode = find_episode(record, request.episode)
            fresh, duplicates, done = decisions.report_all(record, episode, request.transitions)
            now = self.agents.now_micros()
            events = observing(record, episode, fresh, done, now) if fresh else []
            if following is None:
                return Decision(events, ReportedEpisode(duplicates, done, None))
            if events and events[-1].WhichOneof("kind") == "agent_paused":
                return refused(events, events[-1].agent_paused.reason)
            if not done:
                raise InvalidArgumentError("next", "needs transitions up to the end of the episode, or EndEpisode before it")
            repeated = decisions.repeated_start(record, following)
            if repeated is not None:
                return Decision(events, ReportedEpisode(duplicates, done, repeated.started))
            closing = decisions.make_room(record, following.abandon_open, now, ended=episode.number)

            def finish(planned: TimedPlan) -> Decision[ReportedEpisode]:
                return self._begun(
                    record, planned, following, closing, lambda started: ReportedEpisode(duplicates, done, started), events
                )

            return PlanNeeded(record.definition.learner, record.state_after(fresh), finish)

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
        plan, seconds = planned
        self.agents.meter.planned(record.name, plan.episode, seconds, satisfiable=plan.kernel_satisfiable)
        event = starting(record, planned, request, PLANNED_BY, now)
        return Decision([*reported, *closing, *detected, event], reply(event.episode_started))


def refused(events: list[events_pb2.Event], reason: str) -> Decision[Any]:
    """The agent pauses itself by `events`, so that no episode starts."""
    return Decision(events, None, paused(reason))
