"""Servers with one mistake each, for the tests that must notice it."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from safe_psrl_server.agents import commands
from safe_psrl_server.agents.commands import AgentCommands, ReportedEpisode
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.security import access

Mistake = Callable[[pytest.MonkeyPatch], None]


def raising(patch: pytest.MonkeyPatch) -> None:
    """An episode that is not there is looked up as if it were."""
    end = AgentCommands.end_episode

    async def carelessly(self: AgentCommands, request: Any) -> Any:
        self.host.record(request.agent).episodes[request.episode]
        return await end(self, request)

    patch.setattr(AgentCommands, "end_episode", carelessly)


def hasty(patch: pytest.MonkeyPatch) -> None:
    """A report is counted before it is checked."""
    report = AgentCommands.begin_report

    def carelessly(self: AgentCommands, request: Any, **how: Any) -> Any:
        if (agent := self.host._agents.get(request.agent)) is not None and agent.record is not None:
            agent.record.totals.overridden_actions += 1
        return report(self, request, **how)

    patch.setattr(AgentCommands, "begin_report", carelessly)


def half(patch: pytest.MonkeyPatch) -> None:
    """A whole episode is stored step by step until one is wrong."""

    async def carelessly(self: AgentCommands, request: Any) -> Any:
        done, duplicates = False, 0
        for step, transition in enumerate(request.transitions):

            def decide(record: Any, step: int = step, transition: Any = transition) -> Any:
                events, reported = commands.decisions.report(record, request.episode, step, transition, self.host.now_micros())
                return events, reported

            reported = await self.host.decide(request.agent, decide)
            done, duplicates = reported.done, duplicates + reported.duplicate
        return ReportedEpisode(duplicates, done, None)

    patch.setattr(AgentCommands, "begin_report_episode", lambda *call: asyncio.ensure_future(carelessly(*call)))


def gullible(patch: pytest.MonkeyPatch) -> None:
    """An import is not looked at."""
    patch.setattr(commands, "refuse_nonsense", lambda _record: None)


def unread(patch: pytest.MonkeyPatch) -> None:
    """Bytes that are no message are left to gRPC."""
    patch.setattr(access, "parsed", lambda parse, data: parse(data))


def asleep(patch: pytest.MonkeyPatch) -> None:
    """A refusal takes for ever."""
    start = AgentCommands.begin_start

    async def carelessly(self: AgentCommands, request: Any) -> Any:
        try:
            return await start(self, request)
        except ServiceError:
            await asyncio.sleep(3600)
            raise

    patch.setattr(AgentCommands, "begin_start", lambda *call: asyncio.ensure_future(carelessly(*call)))


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """A call of a batch that fails is passed over."""
    finish = ControlService._finish

    async def carelessly(self: ControlService, pending: Any) -> Any:
        reply = await finish(self, pending)
        replies = [one for one in reply.batch.replies if not one.HasField("error")]
        if reply.HasField("batch"):
            del reply.batch.replies[:]
            reply.batch.replies.extend(replies)
        return reply

    patch.setattr(ControlService, "_finish", carelessly)


def busy(patch: pytest.MonkeyPatch) -> None:
    """Reading changes what is read."""
    snapshot_of = commands.AgentRecord.digest

    def carelessly(self: Any) -> str:
        self.totals.last_reward += 1.0
        return snapshot_of(self)

    patch.setattr(commands.AgentRecord, "digest", carelessly)


MISTAKES: Final[dict[Mistake, str]] = {  # and what a finding of each says, as a pattern
    raising: "answered UNKNOWN",
    hasty: "changed the state",
    half: "a refused request changed the state",
    gullible: "an agent that was let in fails|ImportAgent .* answered UNKNOWN",
    unread: "DecodeError",
    asleep: "DEADLINE_EXCEEDED without a reason",
    forgetful: "calls of a batch got",
    busy: "changed|what is stored",
}
