"""Agents on a store, without a network."""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Any, Self

from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.administration import Administration
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.agents.definition import completed
from safe_psrl_server.agents.episode_events import TimedPlan, starting
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.rpc.replies import write_start, write_step
from safe_psrl_server.store import EventStore, open_store
from tests.safe_psrl_server.specs import make_spec


class Clock:
    """Microseconds that pass when told to."""

    def __init__(self) -> None:
        self.micros = 1_000_000_000

    def __call__(self) -> int:
        return self.micros

    def pass_seconds(self, seconds: float) -> None:
        self.micros += int(seconds * 1e6)


class Bench:
    """The service's agents on a store or the one at an address. Calls are for the agent "a" unless another one is named."""

    def __init__(self, store: EventStore | str = "memory:", every_events: int = 2000, **limits: Any) -> None:
        self.clock = Clock()
        self.store = open_store(store) if isinstance(store, str) else store
        self.agents = AgentService(self.store, Limits(**limits), SnapshotPolicy(every_events=every_events), self.clock)
        self.commands, self.administration = AgentCommands(self.agents), Administration(self.agents)
        self.is_closed = False

    async def open(self) -> Self:
        await self.store.open()
        await self.agents.open()
        return self

    async def load(self) -> None:
        """Every stored agent into memory."""
        for name in await self.store.heads():
            await self.agents.registry.load(name, may_create=True)

    async def create(self, *names: str, **spec: Any) -> None:
        for name in names or ("a",):
            await self.administration.create(name, make_spec(**spec))

    async def begin(self, **spec: Any) -> None:
        """Create the agent "a" and start its first episode."""
        await self.create(**spec)
        await self.start()

    def start(self, agent: str = "a", **fields: Any) -> Future[Any]:
        begun = self.commands.start_episode(control_pb2.StartEpisodeRequest(agent=agent, **{"state": 0, **fields}))

        async def started() -> Any:
            return (await begun).started

        return asyncio.ensure_future(started())

    def act(self, state: int = 0, agent: str = "a", **fields: Any) -> Any:
        return self.commands.get_action(control_pb2.GetActionRequest(agent=agent, state=state, **fields))

    def report(self, moved: control_pb2.Transition, agent: str = "a", wants_action: bool = False, **fields: Any) -> Any:
        request = control_pb2.StepRequest(agent=agent, transition=moved, **fields)
        return self.commands.report(request, wants_action=wants_action)

    def report_episode(self, episode: int, *path: control_pb2.Transition, agent: str = "a") -> Any:
        request = control_pb2.ReportEpisodeRequest(agent=agent, episode=episode, transitions=path)
        return self.commands.report_episode(request)

    def end(self, episode: int, agent: str = "a") -> Any:
        return self.commands.end_episode(control_pb2.EndEpisodeRequest(agent=agent, episode=episode))

    async def started(self, agent: str = "a", **fields: Any) -> control_pb2.StartEpisodeResponse:
        """What StartEpisode replies, policy included."""
        request = control_pb2.StartEpisodeRequest(agent=agent, with_policy=True, **{"state": 0, **fields})
        reply = control_pb2.StartEpisodeResponse()
        write_start(await self.commands.start_episode(request), request, reply)
        return reply

    async def stepped(self, moved: control_pb2.Transition, agent: str = "a", **fields: Any) -> control_pb2.StepResponse:
        """What Step replies."""
        reply = control_pb2.StepResponse()
        write_step(self.agents.meter, await self.report(moved, agent, wants_action=True, **fields), reply)
        return reply

    def record(self, name: str = "a") -> AgentRecord:
        """Of an agent that is in memory."""
        agent = self.agents.registry.resident(name)
        assert agent is not None
        return agent.intact

    async def snapshot(self, name: str = "a") -> None:
        agent = self.agents.registry.resident(name)
        assert agent is not None
        await self.agents.compactor.save(agent)

    async def is_verified(self, name: str = "a") -> bool:
        """Whether what is stored, folded again, is what is served."""
        return (await self.agents.verify(name)).equal

    async def close(self) -> None:
        """Stop cleanly, unless that is done already."""
        if self.is_closed:
            return
        self.is_closed = True
        await self.agents.close()
        await self.store.close()


def begun(**fields: Any) -> AgentRecord:
    """The record of an agent in its first episode, from events alone."""
    record = AgentRecord("a")
    spec = completed(make_spec(**fields), 60.0)
    record.apply(events_pb2.Event(agent_created=events_pb2.AgentCreated(spec=spec)))
    _, plan = record.definition.learner.start_episode(record.state)
    record.apply(starting(record, TimedPlan(plan, 0.0), control_pb2.StartEpisodeRequest(), "test", 1))
    return record


NewBench = Callable[..., Awaitable[Bench]]
