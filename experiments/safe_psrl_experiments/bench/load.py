"""Load on a service: clients on one event loop, each playing the streaming buffer through one way of the protocol.

Every function makes about `calls` steps or calls, and returns how many it made and the seconds that they took.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc

from safe_psrl_experiments.bench.echo_server import STREAM, UNARY
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2

PRESET: Final = "streaming-buffer"
HORIZON: Final = 10
DEADLINE: Final = 120.0  # of a stream, and of whatever hangs


class Turn(NamedTuple):
    """One measurement."""

    done: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.done / self.seconds


class Target:
    """The service that is measured, on one connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.control: Any = control_pb2_grpc.ControlServiceStub(channel)  # the stubs' types are those of synchronous calls
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(channel)

    async def create(self, names: Sequence[str], spec: model_pb2.AgentSpec | None = None) -> None:
        """Streaming buffers, unless told otherwise."""
        for name in names:
            request = admin_pb2.CreateAgentRequest(agent=name, spec=spec) if spec else None
            request = request or admin_pb2.CreateAgentRequest(agent=name, preset=PRESET)
            await self.admin.CreateAgent(request, timeout=DEADLINE)


Make = Callable[[str, int], Any]  # of an agent and the number of its call: the message that is sent


class Echo:
    """The bare echo, with the same messages."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        request = control_pb2.StepRequest
        self._channel = channel
        self.unary = self.unary_of(request)
        self.stream = channel.stream_stream(STREAM, request.SerializeToString, request.FromString)

    def unary_of(self, request: Any) -> Any:
        """The call for messages of this class."""
        return self._channel.unary_unary(UNARY, request.SerializeToString, request.FromString)


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(target) as channel:
        await asyncio.wait_for(channel.channel_ready(), DEADLINE)
        yield channel


def step_request(agent: str, episode: int, step: int, action: int) -> control_pb2.StepRequest:
    """A step of a buffer that stays empty: the cheapest environment there is, so that the service is what is measured."""
    transition = control_pb2.Transition(state=0, action=action, next_state=0)
    return control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=transition)


async def together(players: Sequence[Awaitable[int]]) -> Turn:
    began = time.perf_counter()
    done = sum(await asyncio.gather(*players))
    return Turn(done, time.perf_counter() - began)


# --- the echo


def some_step(agent: str, number: int) -> control_pb2.StepRequest:
    return step_request(agent, 1_000, number % HORIZON, 0)


def some_question(agent: str, _number: int) -> control_pb2.GetActionRequest:
    return control_pb2.GetActionRequest(agent=agent, state=0)


def some_episode(agent: str, number: int) -> control_pb2.ReportEpisodeRequest:
    policy = model_pb2.Policy(num_states=1, actions=[1] * HORIZON)
    started = control_pb2.StartEpisodeResponse(episode=1_000 + number, policy=policy)
    return _played(agent, started, _local_start(agent))


async def echo_unary(echo: Echo, clients: int, calls: int, make: Make = some_step) -> Turn:
    unary = echo.unary_of(type(make("", 0)))

    async def play(agent: str) -> int:
        for number in range(calls // clients):
            await unary(make(agent, number), timeout=DEADLINE)
        return calls // clients

    return await together([play(f"agent-{number:02}") for number in range(clients)])


async def echo_sequential(echo: Echo, calls: int) -> list[float]:
    """Milliseconds of each call."""
    return [await _timed(echo.unary, step_request("agent-00", 1_000, step % HORIZON, 0)) for step in range(calls)]


async def echo_stream(echo: Echo, clients: int, calls: int) -> Turn:
    async def play(agent: str) -> int:
        stream = echo.stream(timeout=DEADLINE)
        for number in range(calls // clients):
            await stream.write(step_request(agent, 1_000, number % HORIZON, 0))
            await stream.read()
        await stream.done_writing()
        return calls // clients

    return await together([play(f"agent-{number:02}") for number in range(clients)])


# --- the service


async def step_sequential(target: Target, agent: str, calls: int) -> list[float]:
    """Milliseconds of each step; the episodes' starts between them are not in it."""
    took = list[float]()
    while len(took) < calls:
        started = await _start(target, agent)
        action = started.action
        for step in range(HORIZON):
            request = step_request(agent, started.episode, step, action)
            began = time.perf_counter()
            action = (await target.control.Step(request, timeout=DEADLINE)).action
            took.append((time.perf_counter() - began) * 1e3)
    return took


async def step_unary(target: Target, agents: Sequence[str], calls: int) -> Turn:
    """A client an agent: steps, and the starts of episodes between them, which count as time but not as steps."""

    async def play(agent: str) -> int:
        episodes = max(calls // len(agents) // HORIZON, 1)
        for _ in range(episodes):
            started = await _start(target, agent)
            action = started.action
            for step in range(HORIZON):
                request = step_request(agent, started.episode, step, action)
                action = (await target.control.Step(request, timeout=DEADLINE)).action
        return episodes * HORIZON

    return await together([play(agent) for agent in agents])


async def step_stream(target: Target, agents: Sequence[str], calls: int) -> Turn:
    """A stream an agent; episodes begin on it too."""

    async def play(agent: str) -> int:
        stream = target.control.StepStream(timeout=DEADLINE)
        episodes = max(calls // len(agents) // HORIZON, 1)
        for _ in range(episodes):
            begin = control_pb2.StartEpisodeRequest(agent=agent, state=0, abandon_open=True)
            await stream.write(control_pb2.StepStreamRequest(start_episode=begin))
            started = (await stream.read()).start_episode
            action = started.action
            for step in range(HORIZON):
                request = step_request(agent, started.episode, step, action)
                await stream.write(control_pb2.StepStreamRequest(step=request))
                reply = await stream.read()
                if reply.WhichOneof("outcome") != "step":
                    raise RuntimeError(f"the service answered {reply}")
                action = reply.step.action
        await stream.done_writing()
        return episodes * HORIZON

    return await together([play(agent) for agent in agents])


async def step_batches(target: Target, agents: Sequence[str], streams: int, calls: int) -> Turn:
    """Agents that go on together: those of a stream in one message, the streams in turns."""
    episodes = max(calls // len(agents) // HORIZON, 1)

    async def play(some: Sequence[str]) -> int:
        stream = target.control.StepStream(timeout=DEADLINE)
        for _ in range(episodes):
            starts = [control_pb2.StartEpisodeRequest(agent=agent, state=0, abandon_open=True) for agent in some]
            replies = await _exchanged(stream, [control_pb2.StepStreamRequest(start_episode=start) for start in starts])
            numbers = [reply.start_episode.episode for reply in replies]
            actions = [reply.start_episode.action for reply in replies]
            for step in range(HORIZON):
                played = zip(some, numbers, actions, strict=True)
                moves = [step_request(agent, episode, step, action) for agent, episode, action in played]
                replies = await _exchanged(stream, [control_pb2.StepStreamRequest(step=move) for move in moves])
                actions = [reply.step.action for reply in replies]
        await stream.done_writing()
        return episodes * HORIZON * len(some)

    return await together([play(agents[first::streams]) for first in range(streams)])


async def report_batches(target: Target, agents: Sequence[str], streams: int, calls: int) -> Turn:
    """The same with whole episodes, which the clients play themselves."""
    episodes = max(calls // len(agents) // HORIZON, 1)

    async def play(some: Sequence[str]) -> int:
        stream = target.control.StepStream(timeout=DEADLINE)
        begins = [_local_start(agent) for agent in some]
        replies = await _exchanged(stream, [control_pb2.StepStreamRequest(start_episode=begin) for begin in begins])
        started = [reply.start_episode for reply in replies]
        for _ in range(episodes):
            reports = [_played(agent, last, begin) for agent, last, begin in zip(some, started, begins, strict=True)]
            replies = await _exchanged(stream, [control_pb2.StepStreamRequest(report_episode=report) for report in reports])
            started = [reply.report_episode.next for reply in replies]
        await stream.done_writing()
        return episodes * HORIZON * len(some)

    return await together([play(agents[first::streams]) for first in range(streams)])


async def _exchanged(stream: Any, calls: Sequence[control_pb2.StepStreamRequest]) -> Sequence[control_pb2.StepStreamResponse]:
    """The replies to a batch, none of which may be an error."""
    await stream.write(control_pb2.StepStreamRequest(batch=control_pb2.StepStreamBatch(calls=calls)))
    replies: Sequence[control_pb2.StepStreamResponse] = (await stream.read()).batch.replies
    wrong = next((reply for reply in replies if reply.HasField("error")), None)
    if wrong is not None or len(replies) != len(calls):
        raise RuntimeError(f"the service answered {wrong or replies}")
    return replies


async def report_episodes(target: Target, agents: Sequence[str], calls: int) -> Turn:
    """A client an agent, which plays the policy itself: a call an episode, that reports it and begins the next."""

    async def play(agent: str) -> int:
        begin = _local_start(agent)
        started = await target.control.StartEpisode(begin, timeout=DEADLINE)
        episodes = max(calls // len(agents) // HORIZON, 1)
        for _ in range(episodes):
            started = (await target.control.ReportEpisode(_played(agent, started, begin), timeout=DEADLINE)).next
        return episodes * HORIZON

    return await together([play(agent) for agent in agents])


async def get_action(target: Target, agents: Sequence[str], calls: int) -> Turn:
    async def play(agent: str) -> int:
        request = control_pb2.GetActionRequest(agent=agent, state=0)
        for _ in range(calls // len(agents)):
            await target.control.GetAction(request, timeout=DEADLINE)
        return calls // len(agents)

    return await together([play(agent) for agent in agents])


async def get_action_sequential(target: Target, agents: Sequence[str], calls: int) -> list[float]:
    """Milliseconds of each call, of one agent after the other."""
    requests = [control_pb2.GetActionRequest(agent=agent, state=0) for agent in agents]
    return [await _timed(target.control.GetAction, requests[number % len(requests)]) for number in range(calls)]


async def _start(target: Target, agent: str) -> control_pb2.StartEpisodeResponse:
    request = control_pb2.StartEpisodeRequest(agent=agent, state=0, abandon_open=True)
    reply: control_pb2.StartEpisodeResponse = await target.control.StartEpisode(request, timeout=DEADLINE)
    return reply


def _local_start(agent: str) -> control_pb2.StartEpisodeRequest:
    """For a client that plays the policy itself."""
    return control_pb2.StartEpisodeRequest(agent=agent, state=0, with_policy=True, abandon_open=True)


def _played(
    agent: str, started: control_pb2.StartEpisodeResponse, begin: control_pb2.StartEpisodeRequest
) -> control_pb2.ReportEpisodeRequest:
    """The whole episode, and the wish for the next."""
    policy, num_states = started.policy.actions, started.policy.num_states
    moves = [control_pb2.Transition(state=0, action=policy[step * num_states], next_state=0) for step in range(HORIZON)]
    return control_pb2.ReportEpisodeRequest(agent=agent, episode=started.episode, transitions=moves, next=begin)


async def _timed(call: Callable[..., Awaitable[object]], request: object) -> float:
    began = time.perf_counter()
    await call(request, timeout=DEADLINE)
    return (time.perf_counter() - began) * 1e3
