"""Servers with one mistake each, which fuzzing must find."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from safe_psrl_server.agents import administration, decisions
from safe_psrl_server.agents.commands import AgentCommands, ReportedEpisode
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.rpc import middleware
from safe_psrl_server.rpc.step_stream import StepStream

Mistake = Callable[[pytest.MonkeyPatch], None]


def raising(patch: pytest.MonkeyPatch) -> None:
    """An episode is looked up without a check."""
    end = AgentCommands.end_episode

    def careless(self: AgentCommands, request: Any) -> Any:
        agent = self.agents.registry.resident(request.agent)
        if agent is not None and agent.exists:
            agent.intact.episodes[request.episode]
        return end(self, request)

    patch.setattr(AgentCommands, "end_episode", careless)


def hasty(patch: pytest.MonkeyPatch) -> None:
    """A report is counted before it is checked."""
    report = AgentCommands.report

    def careless(self: AgentCommands, request: Any, **how: Any) -> Any:
        agent = self.agents.registry.resident(request.agent)
        if agent is not None and agent.exists:
            agent.intact.totals.overridden_actions += 1
        return report(self, request, **how)

    patch.setattr(AgentCommands, "report", careless)


def half(patch: pytest.MonkeyPatch) -> None:
    """A trajectory is stored step by step until one is wrong."""

    async def answered(reports: list[Any]) -> Any:
        seen = [await report for report in reports]
        return ReportedEpisode(sum(one.duplicate for one in seen), any(one.done for one in seen), None)

    def careless(self: AgentCommands, request: Any) -> Any:
        """All at once, so that no other call comes between them."""
        now = self.agents.now_micros()
        steps = [
            partial(decisions.report, number=request.episode, step=step, transition=transition, now_micros=now)
            for step, transition in enumerate(request.transitions)
        ]
        return asyncio.ensure_future(answered([self.agents.runtime.submit(request.agent, step) for step in steps]))

    patch.setattr(AgentCommands, "report_episode", careless)


def gullible(patch: pytest.MonkeyPatch) -> None:
    """An import is not checked."""
    patch.setattr(administration, "check_record", lambda _record: None)


def unread(patch: pytest.MonkeyPatch) -> None:
    """Bytes that are no message are left to gRPC."""

    async def careless(parse: Callable[[bytes], Any], data: bytes) -> Any:
        return parse(data)

    patch.setattr(middleware, "parsed", careless)


def asleep(patch: pytest.MonkeyPatch) -> None:
    """A refusal never comes."""
    start = AgentCommands.start_episode

    async def careless(self: AgentCommands, request: Any) -> Any:
        try:
            return await start(self, request)
        except ServiceError:
            await asyncio.sleep(3600)
            raise

    patch.setattr(AgentCommands, "start_episode", lambda *call: asyncio.ensure_future(careless(*call)))


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """A call of a batch that fails gets no reply."""
    replies = StepStream.replies

    async def careless(*call: Any) -> Any:
        async for reply in replies(*call):
            if reply.HasField("batch"):
                kept = [one for one in reply.batch.replies if not one.HasField("error")]
                del reply.batch.replies[:]
                reply.batch.replies.extend(kept)
            yield reply

    patch.setattr(StepStream, "replies", careless)


def busy(patch: pytest.MonkeyPatch) -> None:
    """Reading changes what is read."""
    digest = AgentRecord.digest

    def careless(self: AgentRecord) -> str:
        self.totals.last_reward += 1.0
        return digest(self)

    patch.setattr(AgentRecord, "digest", careless)


MISTAKES: Final[dict[Mistake, str]] = {  # with a pattern of the finding
    raising: "answered UNKNOWN",
    hasty: "changed the state",
    half: "a refused request changed the state",
    gullible: "an agent that was let in fails|ImportAgent .* answered (UNKNOWN|DATA_LOSS)",
    unread: "DecodeError",
    asleep: "DEADLINE_EXCEEDED without a reason",
    forgetful: "calls of a batch got",
    busy: "changed|what is stored",
}
