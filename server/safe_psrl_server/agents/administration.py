"""The calls that create agents, change, pause, move and delete them, as commands. Free of gRPC."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from safe_psrl.errors import SpecError
from safe_psrl.problem.presets import preset
from safe_psrl_proto.v1 import admin_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.comparisons import check_promotion, trial_of
from safe_psrl_server.agents.decisions import Decision
from safe_psrl_server.agents.definition import Definition, checked_definition
from safe_psrl_server.agents.definition_checks import MAX_NAME, check_size, check_text
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.snapshot import check_record
from safe_psrl_server.agents.updates import changes, described, differences, refuse_fixed, updated
from safe_psrl_server.agents.validation import check_definition_version
from safe_psrl_server.errors import AlreadyExistsError, InvalidArgumentError
from safe_psrl_server.security.caller import caller

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
MAX_REASON: Final = 500  # characters


class Updated(NamedTuple):
    """A new definition, and a description of how it differs from the old one."""

    definition: Definition
    changes: list[str]


class Administration:
    """Every change goes through `Runtime.submit`, like the calls of `AgentCommands`."""

    def __init__(self, agents: AgentService) -> None:
        self.agents = agents

    async def create(self, name: str, spec: model_pb2.AgentSpec) -> tuple[AgentRecord, bool]:
        """The agent, and whether it existed already."""
        _check_name(name)
        checked = await self.agents.threads.run(self._checked, spec)  # rejected before anything is written
        by = caller().owner

        def decide(record: AgentRecord) -> Decision[bool]:
            if record.exists:
                if record.definition.message != checked:
                    raise _another_definition(name, record.definition.message, checked)
                return Decision([], True)
            return Decision([self._event(agent_created=events_pb2.AgentCreated(spec=checked, by=by))], False)

        existed = await self.agents.runtime.submit(name, decide, may_create=True)
        record = await self.agents.record(name)
        await self.agents.publish()
        return record, existed

    async def declare(self, name: str, spec: model_pb2.AgentSpec, reason: str) -> list[str]:
        """Create the agent, or update it to the definition `spec`. Returns the changes of an agent that existed.

        Without a mode in `spec`, an agent that exists keeps its own.
        """

        def redefine(current: model_pb2.AgentSpec) -> model_pb2.AgentSpec:
            declared = model_pb2.AgentSpec()
            declared.CopyFrom(spec)
            declared.mode = spec.mode or current.mode
            return declared

        try:
            await self.create(name, spec)
        except AlreadyExistsError:
            return (await self._redefine(name, redefine, 0, reason)).changes
        return []

    async def update(self, request: admin_pb2.UpdateAgentRequest) -> "Updated":
        """Change the definition, or with `dry_run` compute the effect of the change."""
        check_text("reason", request.reason, MAX_REASON)
        paths = list(request.update_mask.paths)

        def updated_from(current: model_pb2.AgentSpec) -> model_pb2.AgentSpec:
            return updated(current, request.update, paths)

        if not request.dry_run:
            return await self._redefine(
                request.agent, updated_from, request.expected_version, request.reason, force=request.force
            )
        record = await self.agents.record(request.agent)
        new = await self.agents.threads.run(self._redefined, record.definition, updated_from)
        check_definition_version(record, request.expected_version)
        await self._check_promotion(request.agent, record.definition, new, force=request.force)
        return Updated(new, changes(record.definition.message, new.message))

    async def _redefine(
        self,
        name: str,
        redefine: Callable[[model_pb2.AgentSpec], model_pb2.AgentSpec],
        expected: int,
        reason: str,
        *,
        force: bool = False,
    ) -> "Updated":
        by, done = caller().owner, False
        while not done:
            known = (await self.agents.record(name)).definition
            new = await self.agents.threads.run(self._redefined, known, redefine)
            await self._check_promotion(name, known, new, force=force)
            lines = changes(known.message, new.message)
            if force and known.is_shadow and not new.is_shadow:
                lines.append("promoted by force: its comparison was not checked")
            event = events_pb2.AgentUpdated(spec=new.message, by=by, reason=reason, changes=lines)

            def decide(record: AgentRecord) -> Decision[bool]:
                current = record.definition
                if current is not known and current.message != known.message:  # noqa: B023  # called before the next round
                    return Decision([], False)
                if not lines:  # noqa: B023
                    return Decision([], True)
                check_definition_version(record, expected)
                return Decision([self._event(agent_updated=event)], True)  # noqa: B023

            done = await self.agents.runtime.submit(name, decide)
        await self.agents.publish()
        return Updated(new, lines)

    async def _check_promotion(self, name: str, known: Definition, new: Definition, *, force: bool) -> None:
        """Raise unless the comparison of a shadow agent allows making it live. Called here, so that every update is checked."""
        if known.is_shadow and not new.is_shadow and not force:
            trial = await self.agents.read(name, trial_of)
            await self.agents.threads.run(check_promotion, trial._replace(definition=new))

    def _redefined(self, known: Definition, redefine: Callable[[model_pb2.AgentSpec], model_pb2.AgentSpec]) -> Definition:
        new = checked_definition(redefine(known.message), self.agents.limits)
        refuse_fixed(known, new)
        return new

    def _checked(self, spec: model_pb2.AgentSpec) -> model_pb2.AgentSpec:
        return checked_definition(spec, self.agents.limits).message

    async def delete(self, name: str) -> None:
        def decide(_record: AgentRecord) -> Decision[None]:
            return Decision([self._event(agent_deleted=events_pb2.AgentDeleted())], None)

        deleting = self.agents.runtime.submit(name, decide, urgent=True)
        self.agents.runtime.stop_plan(name)  # it would hold the agent
        await deleting

    async def pause(self, name: str, reason: str) -> AgentRecord:
        check_text("reason", reason, MAX_REASON)
        event = events_pb2.AgentPaused(reason=reason, by=caller().owner)

        def decide(record: AgentRecord) -> Decision[AgentRecord]:
            return Decision([] if record.paused else [self._event(agent_paused=event)], record)

        pausing = self.agents.runtime.submit(name, decide, urgent=True)
        self.agents.runtime.stop_plan(name)  # it would hold the agent
        record = await pausing
        await self.agents.publish()
        return record

    async def resume(self, name: str, reason: str = "") -> AgentRecord:
        check_text("reason", reason, MAX_REASON)
        event = events_pb2.AgentResumed(reason=reason, by=caller().owner)

        def decide(record: AgentRecord) -> Decision[AgentRecord]:
            return Decision([self._event(agent_resumed=event)] if record.paused else [], record)

        record = await self.agents.runtime.submit(name, decide)
        await self.agents.publish()
        return record

    async def import_snapshot(self, name: str, snapshot: events_pb2.Snapshot) -> AgentRecord:
        _check_name(name)
        await self.agents.threads.run(self._check_snapshot, name, snapshot)
        event = events_pb2.AgentImported(snapshot=snapshot, by=caller().owner)

        def decide(record: AgentRecord) -> Decision[None]:
            if record.exists:
                raise AlreadyExistsError(f"agent {name!r} exists; import under another name", "AGENT_EXISTS", agent=name)
            return Decision([self._event(agent_imported=event)], None)

        await self.agents.runtime.submit(name, decide, may_create=True)
        record = await self.agents.record(name)
        await self.agents.publish()
        return record

    def _check_snapshot(self, name: str, snapshot: events_pb2.Snapshot) -> None:
        trial = AgentRecord(name)
        try:
            for spec in (snapshot.spec, *(kept.spec for kept in snapshot.episodes if kept.HasField("spec"))):
                check_size(spec.cmdp, self.agents.limits)
                spec.ClearField("always_satisfiable")  # computed here, not taken from the import
            trial.restore(snapshot)
            check_record(trial)
            check_text("pause_reason", snapshot.pause_reason, MAX_REASON)
        except ValueError as error:
            raise InvalidArgumentError("chunk", str(error)) from None

    def _event(self, **kind: object) -> events_pb2.Event:
        return events_pb2.Event(time_micros=self.agents.now_micros(), **kind)  # type: ignore[arg-type]  # one of its kinds


def spec_from_request(request: admin_pb2.CreateAgentRequest) -> model_pb2.AgentSpec:
    """The complete definition that a creation requests."""
    chosen = request.WhichOneof("definition")
    if chosen == "spec":
        if request.HasField("options") or request.seed:
            raise InvalidArgumentError("options", "must be set in the spec; those of the request apply to presets only")
        return request.spec
    if chosen is None:
        raise InvalidArgumentError("definition", "needs a spec or the name of a preset")
    try:
        cmdp = cmdp_to_message(preset(request.preset))
    except SpecError as error:
        raise InvalidArgumentError("preset", f"{request.preset[:MAX_NAME]!r} {error.requirement}") from None
    return model_pb2.AgentSpec(cmdp=cmdp, options=request.options, seed=request.seed)


def _another_definition(name: str, existing: model_pb2.AgentSpec, requested: model_pb2.AgentSpec) -> AlreadyExistsError:
    fields = differences(existing, requested)
    message = f"agent {name!r} exists with another definition: {described(fields)}; use another name, or delete it first"
    return AlreadyExistsError(message, "AGENT_EXISTS", agent=name, fields=",".join(fields))


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidArgumentError(
            "agent", f"{name!r} must be 1 to 128 letters, digits and . _ - : /, beginning with a letter or digit"
        )
