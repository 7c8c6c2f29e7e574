"""Agents that learn while a page shows them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from safe_psrl_client import AgentPausedError, Client, RemoteAgent
from safe_psrl_client.play import play_episode
from safe_psrl_testbed import scenario_named


def play_some(
    client: Client, agent: str, preset: str = "streaming-buffer", episodes: int = 25, seed: int = 1, method: str = "certified"
) -> None:
    client.create_agent(agent, preset, seed=seed, options={"method": method})
    environment, remote = scenario_named(preset).environment(seed), RemoteAgent(client, agent, "local")
    for _ in range(episodes):
        play_episode(environment, remote)


@contextmanager
def simulation(target: str, agent: str, preset: str = "streaming-buffer", seed: int = 1) -> Iterator[None]:
    """Plays in a thread until the block ends, except while its agent is paused."""
    stop = threading.Event()

    def run() -> None:
        with Client(target) as client:
            environment, remote = scenario_named(preset).environment(seed), RemoteAgent(client, agent, "local")
            while not stop.wait(0.02):
                with suppress(AgentPausedError):
                    play_episode(environment, remote)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
