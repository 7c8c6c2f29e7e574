"""The natural loop, with threads and with asyncio."""

from collections.abc import Callable

import pytest

from safe_psrl import SafePsrlOptions
from safe_psrl_client import AsyncClient, Client, EpisodeClosedError, NotFoundError, Transition, play, requests
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_testbed import Scenario, TabularEnvironment
from safe_psrl_testbed.local_agent import LocalAgent

SEED = 3


def test_the_loop_learns_what_an_agent_in_process_learns(
    client: Client, agent_name: str, world: Callable[[int], TabularEnvironment], buffer: Scenario
) -> None:
    client.create_agent(agent_name, "streaming-buffer", seed=SEED, options={"method": "published"})
    environment = world(4)
    for number in range(1, 6):
        with client.episode(agent_name, environment.reset()) as episode:
            assert (episode.number, episode.step, episode.horizon) == (number, 0, 10)
            while not episode.done:
                next_state, reward, costs, _ = environment.step(episode.action)
                episode.report(next_state, reward, costs)
    local = LocalAgent(buffer.spec, SafePsrlOptions("published"), seed=SEED)
    play(world(4), local, 5)
    status = client.get_agent(agent_name).status
    assert [c.dual_variable for c in status.constraints] == local.state.dual_variables.tolist()
    assert status.completed_episodes == 5


def test_leaving_early_truncates(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    with client.episode(agent_name, 0) as episode:
        episode.report(0)
    assert episode.done
    assert client.end_episode(agent_name, 1).end == events_pb2.EPISODE_END_TRUNCATED
    with pytest.raises(EpisodeClosedError):
        _ = episode.action
    with pytest.raises(EpisodeClosedError):
        episode.report(0)


def test_leaving_by_an_exception_abandons(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")

    def fail_after_a_step() -> None:
        with client.episode(agent_name, 0) as episode:
            episode.report(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_step()
    ended = client.end_episode(agent_name, 1)
    assert (ended.end, ended.steps) == (events_pb2.EPISODE_END_ABANDONED, 1)


def test_another_action_may_be_executed(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    with client.episode(agent_name, 0) as episode:
        episode.report(0, action=1 - episode.action)
    assert client.get_agent(agent_name).status.overridden_actions == 1


async def test_asyncio_truncates_and_abandons(server: str, agent_name: str) -> None:
    async with AsyncClient(server) as client:
        await client.create_agent(agent_name, "streaming-buffer")
        async with client.episode(agent_name, 0) as episode:
            await episode.report(0)
        assert (await client.end_episode(agent_name, 1)).end == events_pb2.EPISODE_END_TRUNCATED
        with pytest.raises(ZeroDivisionError):
            async with client.episode(agent_name, 0):
                raise ZeroDivisionError
        assert (await client.end_episode(agent_name, 2)).end == events_pb2.EPISODE_END_ABANDONED


async def test_asyncio_has_every_call(server: str, agent_name: str) -> None:
    async with AsyncClient(server) as client:
        await client.create_agent(agent_name, "factored-toy")
        start = await client.start_episode(agent_name, 0, with_policy=True)
        assert (await client.get_policy(agent_name)).policy == start.policy
        assert (await client.get_action(agent_name, 0)).action == start.action
        await client.report_transition(agent_name, 1, 0, Transition(0, 0, 0))
        assert (await client.step(agent_name, 1, 1, Transition(0, 0, 0))).step == 1
        assert (await client.report_episode(agent_name, 1, [Transition(0, 0, 0)] * 6)).episode_done
        assert (await client.pause_agent(agent_name)).condition != (await client.resume_agent(agent_name)).condition
        assert (await client.get_posterior(agent_name)).transition_counts.shape
        copy = agent_name[:100] + "-copy"
        assert (await client.import_agent(copy, await client.export_agent(agent_name))).transitions == 6
        assert (await client.verify_agent(copy)).ok
        async for reply in client.watch_agents([copy]):
            assert reply.agents[0].agent == copy
            break
        assert copy in [status.agent async for status in client.list_agents()]
        await client.delete_agent(copy)
        with pytest.raises(NotFoundError):
            await client.get_agent(copy)


async def test_asyncio_streams_steps(server: str, agent_name: str) -> None:
    async with AsyncClient(server) as client:
        await client.create_agent(agent_name, "factored-toy")
        stream = client.step_stream(agent_name)
        tags = [await stream.send(control_pb2.StartEpisodeRequest(agent=agent_name, state=0))]
        tags += [await stream.send(requests.step(agent_name, 1, step, Transition(0, 0, 0))) for step in (0, 1, 5, 2)]
        replies = [await stream.receive() for _ in tags]
    assert not stream.is_usable  # its client closed it
    assert [reply.tag for reply in replies] == tags
    assert [reply.WhichOneof("outcome") for reply in replies] == ["start_episode", "step", "step", "error", "step"]
