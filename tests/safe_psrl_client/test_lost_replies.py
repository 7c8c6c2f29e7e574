"""Nothing is lost or learned twice when connections tear in the middle of calls, or the server restarts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_client import AsyncClient, Client, Mode, RemoteAgent, play
from safe_psrl_client.agent import MODES
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import Scenario, TabularEnvironment
from safe_psrl_testbed.local_agent import LocalAgent

SEED, EPISODES = 6, 30


@pytest.mark.parametrize("mode", MODES)
def test_torn_connections_change_nothing(
    mode: Mode,
    client: Client,
    agent_name: str,
    flaky: Callable[[int], Any],
    world: Callable[[int], TabularEnvironment],
    buffer: Scenario,
) -> None:
    client.create_agent(agent_name, "streaming-buffer", seed=SEED)
    network = flaky(1)
    with Client(network.target, timeout=5) as away, RemoteAgent(away, agent_name, mode) as agent:
        results = play(world(2), agent, EPISODES)
    reference = LocalAgent(buffer.spec, seed=SEED)
    assert results == play(world(2), reference, EPISODES)
    status = client.get_agent(agent_name).status
    assert network.cuts > 3
    assert (status.transitions, status.completed_episodes) == (10 * EPISODES, EPISODES)
    assert [c.dual_variable for c in status.constraints] == reference.state.dual_variables.tolist()


async def test_asyncio_survives_torn_connections(
    server: str, agent_name: str, flaky: Callable[[int], Any], world: Callable[[int], TabularEnvironment], buffer: Scenario
) -> None:
    network = flaky(2)
    environment = world(2)
    async with AsyncClient(network.target, timeout=5) as client:
        await client.create_agent(agent_name, "streaming-buffer", seed=SEED)
        for _ in range(EPISODES):
            async with client.episode(agent_name, environment.reset()) as episode:
                while not episode.done:
                    next_state, reward, costs, _ = environment.step(episode.action)
                    await episode.report(next_state, reward, costs)
    reference = LocalAgent(buffer.spec, seed=SEED)
    play(world(2), reference, EPISODES)
    with Client(server) as client:
        status = client.get_agent(agent_name).status
    assert network.cuts > 3
    assert status.transitions == 10 * EPISODES
    assert [c.dual_variable for c in status.constraints] == reference.state.dual_variables.tolist()


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_of_the_server_is_a_pause(
    mode: Mode, tmp_path: Path, world: Callable[[int], TabularEnvironment], buffer: Scenario
) -> None:
    target = f"unix:{tmp_path}/socket"
    settings = {"store": f"sqlite:{tmp_path}/data", "listen": target, "drain_seconds": 0.2}
    server = EmbeddedServer(**settings)
    server.__enter__()

    def restart(_: object) -> None:
        nonlocal server
        server.__exit__(None, None, None)
        server = EmbeddedServer(**settings)
        server.__enter__()

    with Client(target) as client:
        client.create_agent("a", "streaming-buffer", seed=SEED)
        with RemoteAgent(client, "a", mode) as agent:
            results = play(world(2), agent, 6, on_episode=restart)
        status = client.get_agent("a").status
    server.__exit__(None, None, None)
    reference = LocalAgent(buffer.spec, seed=SEED)
    assert results == play(world(2), reference, 6)
    assert [c.dual_variable for c in status.constraints] == reference.state.dual_variables.tolist()
