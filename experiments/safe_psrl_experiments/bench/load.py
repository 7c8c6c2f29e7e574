"""Load on a service: clients on one event loop, each playing the streaming buffer through one kind of call.

The buffer stays empty: the cheapest environment, so that the service is what is measured. Functions make about `calls` steps or
calls. They return steps or calls per second, or the milliseconds of each call.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from safe_psrl_experiments.bench.echo_server import UNARY
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2

PRESET: Final = "streaming-buffer"
HORIZON: Final = 10
DEADLINE: Final = 120.0

Make = Callable[[str, int], Any]  # an agent and the number of its call: the request


class Target:
    """The service under test, on one connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.control: Any = control_pb2_grpc.ControlServiceStub(channel)  # the stubs' types are those of synchronous calls
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(channel)

    async def create(self, names: Sequence[str], spec: model_pb2.AgentSpec | None = None) -> None:
        """Agents with this spec, or streaming buffers."""
        problem: dict[str, Any] = {"spec": spec} if spec else {"preset": PRESET}
        for name in names:
            await self.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=name, **problem), timeout=DEADLINE)

    async def start(self, agent: str) -> control_pb2.StartEpisodeResponse:
        reply: control_pb2.StartEpisodeResponse = await self.control.StartEpisode(start_request(agent), timeout=DEADLINE)
        return reply


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """On a connection of its own: channels with one target share theirs by default."""
    async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        await asyncio.wait_for(channel.channel_ready(), DEADLINE)
        yield channel


# --- requests


def start_request(agent: str, *, with_policy: bool = False) -> control_pb2.StartEpisodeRequest:
    return control_pb2.StartEpisodeRequest(agent=agent, state=0, with_policy=with_policy, abandon_open=True)


def step_request(agent: str, episode: int, step: int, action: int) -> control_pb2.StepRequest:
    transition = control_pb2.Transition(state=0, action=action, next_state=0)
    return control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=transition)


def episode_request(agent: str, started: control_pb2.StartEpisodeResponse) -> control_pb2.ReportEpisodeRequest:
    """A whole episode with the actions of its policy, and the start of the next."""
    actions = started.policy.actions[:: started.policy.num_states]
    moves = [control_pb2.Transition(state=0, action=action, next_state=0) for action in actions]
    begin = start_request(agent, with_policy=True)
    return control_pb2.ReportEpisodeRequest(agent=agent, episode=started.episode, transitions=moves, next=begin)


def sample_step(agent: str, number: int) -> control_pb2.StepRequest:
    return step_request(agent, 1_000, number % HORIZON, 0)


def sample_action(agent: str, _number: int) -> control_pb2.GetActionRequest:
    return control_pb2.GetActionRequest(agent=agent, state=0)


def sample_episode(agent: str, number: int) -> control_pb2.ReportEpisodeRequest:
    policy = model_pb2.Policy(num_states=1, actions=[1] * HORIZON)
    return episode_request(agent, control_pb2.StartEpisodeResponse(episode=1_000 + number, policy=policy))


# --- the echo


def echo_call(channel: grpc.aio.Channel, make: Make) -> Any:
    request = type(make("", 0))
    return channel.unary_unary(UNARY, request.SerializeToString, request.FromString)


async def echo_unary(channel: grpc.aio.Channel, clients: int, calls: int, make: Make = sample_step) -> float:
    call = echo_call(channel, make)

    async def play(agent: str) -> int:
        for number in range(calls // clients):
            await call(make(agent, number), timeout=DEADLINE)
        return calls // clients

    return await _rate([play(f"agent-{number:02}") for number in range(clients)])


async def echo_sequential(channel: grpc.aio.Channel, calls: int) -> list[float]:
    call = echo_call(channel, sample_step)
    return [(await timed(call, sample_step("agent-00", number)))[0] for number in range(calls)]


# --- the service


async def step_sequential(target: Target, agent: str, calls: int) -> list[float]:
    """Without the starts of episodes between the steps."""
    took = list[float]()
    while len(took) < calls:
        started = await target.start(agent)
        action = started.action
        for step in range(HORIZON):
            milliseconds, reply = await timed(target.control.Step, step_request(agent, started.episode, step, action))
            action = reply.action
            took.append(milliseconds)
    return took


async def step_unary(target: Target, agents: Sequence[str], calls: int) -> float:
    """A client per agent. The starts of episodes count as time but not as steps."""

    async def play(agent: str) -> int:
        return len(await step_sequential(target, agent, calls // len(agents)))

    return await _rate([play(agent) for agent in agents])


async def step_batches(target: Target, agents: Sequence[str], streams: int, calls: int) -> float:
    """The agents of a stream share its messages."""
    episodes = _episodes(agents, calls)

    async def play(some: Sequence[str]) -> int:
        stream = target.control.StepStream(timeout=DEADLINE)
        for _ in range(episodes):
            starts = [control_pb2.StepStreamRequest(start_episode=start_request(agent)) for agent in some]
            started = [reply.start_episode for reply in await _exchange(stream, starts)]
            actions = [reply.action for reply in started]
            for step in range(HORIZON):
                moves = [
                    control_pb2.StepStreamRequest(step=step_request(agent, reply.episode, step, action))
                    for agent, reply, action in zip(some, started, actions, strict=True)
                ]
                actions = [reply.step.action for reply in await _exchange(stream, moves)]
        await stream.done_writing()
        return episodes * HORIZON * len(some)

    return await _rate([play(agents[first::streams]) for first in range(streams)])


async def report_episodes(target: Target, agents: Sequence[str], calls: int) -> float:
    """A client per agent, which plays the policy itself: steps per second, reported in a call per episode."""
    episodes = _episodes(agents, calls)

    async def play(agent: str) -> int:
        started = await target.control.StartEpisode(start_request(agent, with_policy=True), timeout=DEADLINE)
        for _ in range(episodes):
            started = (await target.control.ReportEpisode(episode_request(agent, started), timeout=DEADLINE)).next
        return episodes * HORIZON

    return await _rate([play(agent) for agent in agents])


async def get_action(target: Target, agents: Sequence[str], calls: int) -> float:
    async def play(agent: str) -> int:
        return len(await get_action_sequential(target, [agent], calls // len(agents)))

    return await _rate([play(agent) for agent in agents])


async def get_action_sequential(target: Target, agents: Sequence[str], calls: int) -> list[float]:
    """One agent after the other."""
    requests = [sample_action(agent, 0) for agent in agents]
    return [(await timed(target.control.GetAction, requests[number % len(requests)]))[0] for number in range(calls)]


def _episodes(agents: Sequence[str], calls: int) -> int:
    return max(calls // len(agents) // HORIZON, 1)


async def _rate(players: Sequence[Awaitable[int]]) -> float:
    """What all of them do together, per second."""
    began = time.perf_counter()
    done = sum(await asyncio.gather(*players))
    return done / (time.perf_counter() - began)


async def timed(call: Callable[..., Awaitable[Any]], request: object) -> tuple[float, Any]:
    """The milliseconds of a call, and its reply."""
    began = time.perf_counter()
    reply = await call(request, timeout=DEADLINE)
    return (time.perf_counter() - began) * 1e3, reply


async def _exchange(stream: Any, calls: Sequence[control_pb2.StepStreamRequest]) -> Sequence[control_pb2.StepStreamResponse]:
    """The replies to a batch. Raises if one is an error."""
    await stream.write(control_pb2.StepStreamRequest(batch=control_pb2.StepStreamBatch(calls=calls)))
    replies: Sequence[control_pb2.StepStreamResponse] = (await stream.read()).batch.replies
    wrong = next((reply for reply in replies if reply.HasField("error")), None)
    if wrong is not None or len(replies) != len(calls):
        raise RuntimeError(f"the service answered {wrong or replies}")
    return replies
