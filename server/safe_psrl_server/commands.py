"""The calls of both services as commands on the host: which decision, in which order, with what reply.

Free of gRPC, so that it can be tested and embedded without it.
"""

import re
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from safe_psrl.errors import SpecError
from safe_psrl.problem.presets import preset
from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2
from safe_psrl_server import decisions
from safe_psrl_server.agent_record import AgentRecord, Episode
from safe_psrl_server.conversion import cmdp_to_message, completed, definition_of
from safe_psrl_server.decisions import Acted, Reported
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from safe_psrl_server.host import PLANNED_BY, AgentHost
from safe_psrl_server.planners import TimedPlan
from safe_psrl_server.promises import Decided, Decision, Told, as_it_is
from safe_psrl_server.snapshot import refuse_nonsense

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
Events = Sequence[events_pb2.Event]
First = TypeVar("First")
Second = TypeVar("Second")


class ReportedEpisode(NamedTuple):
    """What became of a trajectory."""

    duplicates: int  # transitions that were there already
    done: bool  # the episode is complete
    next: events_pb2.EpisodeStarted | None  # if asked for


class AgentCommands:
    """What can be asked of the agents of a host."""

    def __init__(self, host: AgentHost) -> None:
        self.host = host

    # --- data plane

    # What `begin_...` gives can be waited for. It is decided after everything that was begun before: already, or right before
    # its commit. If it is refused, that is raised at once, or when it is waited for.

    async def start_episode(self, request: control_pb2.StartEpisodeRequest) -> events_pb2.EpisodeStarted:
        return await self.begin_start(request)

    def begin_start(self, request: control_pb2.StartEpisodeRequest) -> "Future[events_pb2.EpisodeStarted]":
        def decide(record: AgentRecord) -> "Decided[events_pb2.EpisodeStarted]":
            repeated = decisions.repeated_start(record, request)
            if repeated is not None:
                return [], repeated.started
            state = request.state if request.HasField("state") else None
            return self._begin(record, request.request_id, state, request.abandon_open)

        return self.host.answer(request.agent, decide, as_it_is)

    def action_at_hand(self, request: control_pb2.GetActionRequest) -> Acted | None:
        """The action, if that needs neither a look into the store nor a new episode."""
        return decisions.act(self.host.record(request.agent), request) if self.host.is_always_fresh else None

    async def get_action(self, request: control_pb2.GetActionRequest) -> Acted:
        acted = decisions.act(await self.host.fresh_record(request.agent), request)
        if acted is not None:
            return acted

        def decide(record: AgentRecord) -> "Decided[events_pb2.EpisodeStarted | None]":
            if decisions.act(record, request) is not None:  # somebody else began one meanwhile
                return [], None
            decisions.check_first_state(record, request.state)
            if request.HasField("step") and request.step != 0:
                raise FailedPreconditionError(f"no episode is open, so step {request.step} cannot be meant", "NO_EPISODE")
            return self._begin(record, "", request.state, abandon_open=False)

        await self.host.decide(request.agent, decide)
        acted = decisions.act(self.host.record(request.agent), request)
        if acted is None:
            raise FailedPreconditionError("the episode that was begun has ended already; ask again", "NO_EPISODE")
        return acted

    async def report(
        self, request: "control_pb2.ReportTransitionRequest | control_pb2.StepRequest", *, wants_action: bool
    ) -> tuple[AgentRecord, Reported]:
        return await self.begin_report(request, wants_action=wants_action, answer=as_it_is)

    def begin_report(
        self,
        request: "control_pb2.ReportTransitionRequest | control_pb2.StepRequest",
        *,
        wants_action: bool,
        answer: Callable[[tuple[AgentRecord, Reported]], Told],
    ) -> "Future[Told]":
        """One transition. If the next action is wanted too, a paused agent that may not act refuses at once.

        Gives what `answer` makes of it, which may not have been applied to the record yet.
        """
        if not request.HasField("transition"):
            raise InvalidArgumentError("transition", "is missing")
        episode = request.episode if request.HasField("episode") else None
        step = request.step if request.HasField("step") else None

        def decide(record: AgentRecord) -> "Decision[tuple[AgentRecord, Reported]]":
            if wants_action:
                decisions.check_may_act(record)
            events, reported = decisions.report(record, episode, step, request.transition, self.host.now_micros())
            return events, (record, reported)

        return self.host.answer(request.agent, decide, answer)

    async def report_episode(self, request: control_pb2.ReportEpisodeRequest) -> ReportedEpisode:
        return await self.begin_report_episode(request)

    def begin_report_episode(self, request: control_pb2.ReportEpisodeRequest) -> "Future[ReportedEpisode]":
        """A trajectory, and the beginning of the next episode if that is asked for: both, or none."""
        following = request.next if request.HasField("next") else None
        if following is not None and following.agent not in {"", request.agent}:
            raise InvalidArgumentError("next.agent", f"must be {request.agent!r} or left out (is {following.agent!r})")

        def decide(record: AgentRecord) -> "Decided[ReportedEpisode]":
            now = self.host.now_micros()
            events, duplicates, done = decisions.report_all(record, request.episode, request.transitions, now)
            if following is None:
                return events, ReportedEpisode(duplicates, done, None)
            if not done:
                raise InvalidArgumentError("next", "needs transitions up to the end of the episode, or EndEpisode before it")
            repeated = decisions.repeated_start(record, following)
            if repeated is not None:
                return events, ReportedEpisode(duplicates, done, repeated.started)
            state = following.state if following.HasField("state") else None
            begun = self._begin(record, following.request_id, state, following.abandon_open, events)
            return _mapped(begun, lambda started: ReportedEpisode(duplicates, done, started))

        return self.host.answer(request.agent, decide, as_it_is)

    async def end_episode(self, request: control_pb2.EndEpisodeRequest) -> Episode:
        def decide(record: AgentRecord) -> "Decision[Episode]":
            return decisions.end_episode(record, request.episode, request.end, self.host.now_micros())

        return await self.host.decide(request.agent, decide)

    # --- control plane

    async def create(self, name: str, spec: model_pb2.AgentSpec) -> tuple[AgentRecord, bool]:
        """The agent, and whether it existed already."""
        _check_name(name)
        full = completed(spec, self.host.limits.episode_timeout_seconds)
        checked = definition_of(full, self.host.limits.max_table_entries)  # refused before anything is written

        def decide(record: AgentRecord) -> "Decision[tuple[AgentRecord, bool]]":
            if record.exists:
                if record.definition.message != checked.message:
                    raise AlreadyExistsError(f"agent {name!r} exists with another definition", "AGENT_EXISTS", agent=name)
                return [], (record, True)
            self.host.check_room()
            return [self._event(agent_created=events_pb2.AgentCreated(spec=checked.message))], (record, False)

        return await self.host.decide(name, decide, may_create=True)

    async def delete(self, name: str) -> None:
        def decide(_record: AgentRecord) -> "Decision[None]":
            return [self._event(agent_deleted=events_pb2.AgentDeleted())], None

        await self.host.decide(name, decide)

    async def pause(self, name: str, reason: str) -> AgentRecord:
        def decide(record: AgentRecord) -> "Decision[AgentRecord]":
            events: Events = [] if record.paused else [self._event(agent_paused=events_pb2.AgentPaused(reason=reason))]
            return events, record

        return await self.host.decide(name, decide)

    async def resume(self, name: str) -> AgentRecord:
        def decide(record: AgentRecord) -> "Decision[AgentRecord]":
            return [self._event(agent_resumed=events_pb2.AgentResumed())] if record.paused else [], record

        return await self.host.decide(name, decide)

    async def import_snapshot(self, name: str, snapshot: events_pb2.Snapshot) -> AgentRecord:
        _check_name(name)
        trial = AgentRecord(name)
        try:
            definition_of(snapshot.spec, self.host.limits.max_table_entries)
            trial.restore(snapshot)
            refuse_nonsense(trial)
        except ValueError as error:
            raise InvalidArgumentError("chunk", str(error)) from None

        def decide(record: AgentRecord) -> "Decision[AgentRecord]":
            if record.exists:
                raise AlreadyExistsError(f"agent {name!r} exists; import under another name", "AGENT_EXISTS", agent=name)
            self.host.check_room()
            return [self._event(agent_imported=events_pb2.AgentImported(snapshot=snapshot))], record

        return await self.host.decide(name, decide, may_create=True)

    # --- inside

    def _begin(
        self, record: AgentRecord, request_id: str, state: int | None, abandon_open: bool, before: Events = ()
    ) -> "Decided[events_pb2.EpisodeStarted]":
        """Plan and begin an episode, after what is stored already and the events `before`, which are stored with it."""
        closing = decisions.make_room(record, abandon_open, self.host.now_micros(), before)
        version, trajectory = record.version, decisions.trajectory_in(before)

        def begun(planned: TimedPlan) -> "Decision[events_pb2.EpisodeStarted]":
            plan, seconds, settled = planned
            if record.version == version:
                record.note_settled(settled, trajectory)
            self.host.meter.planned(record.name, plan.episode, seconds, satisfiable=plan.kernel_satisfiable)
            event = decisions.starting(plan, request_id, state, PLANNED_BY, seconds, self.host.now_micros())
            record.foresee_start(event, plan)
            return [*before, *closing, event], event.episode_started

        async def in_time(planning: Awaitable[TimedPlan]) -> "Decision[events_pb2.EpisodeStarted]":
            return begun(await planning)

        state_before = record.state if trajectory is None else record.state_after(trajectory)
        planned = self.host.plan(record.definition.learner, state_before)
        return begun(planned) if isinstance(planned, TimedPlan) else in_time(planned)

    def _event(self, **kind: object) -> events_pb2.Event:
        return events_pb2.Event(time_micros=self.host.now_micros(), **kind)  # type: ignore[arg-type]  # one of its kinds


def _mapped(decided: "Decided[First]", change: Callable[[First], Second]) -> "Decided[Second]":
    """The same decision with another reply."""
    if isinstance(decided, tuple):
        events, reply = decided
        return events, change(reply)

    async def later(decided: "Awaitable[Decision[First]]") -> "Decision[Second]":
        events, reply = await decided
        return events, change(reply)

    return later(decided)


def spec_from_request(request: admin_pb2.CreateAgentRequest) -> model_pb2.AgentSpec:
    """The definition that a creation asks for, in full."""
    chosen = request.WhichOneof("definition")
    if chosen == "spec":
        if request.HasField("options") or request.seed:
            raise InvalidArgumentError("options", "belong into the spec; beside it they are for presets")
        return request.spec
    if chosen is None:
        raise InvalidArgumentError("definition", "needs a spec or the name of a preset")
    try:
        cmdp = cmdp_to_message(preset(request.preset))
    except SpecError as error:
        raise InvalidArgumentError("preset", f"{request.preset!r} {error.requirement}") from None
    return model_pb2.AgentSpec(cmdp=cmdp, options=request.options, seed=request.seed)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidArgumentError(
            "agent", f"{name!r} must be 1 to 128 letters, digits and . _ - : /, beginning with a letter or digit"
        )
