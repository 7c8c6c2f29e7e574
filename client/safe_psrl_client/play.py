"""The loop between an environment and an agent."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from safe_psrl_client.agent import Agent


class Environment(Protocol):
    """An episodic environment with finite states and actions."""

    def reset(self) -> int:
        """Begin an episode; its first state."""
        ...

    def step(self, action: int) -> tuple[int, float, Sequence[float], bool]:
        """Play `action`: the next state, the reward, the costs, and whether the episode is done."""
        ...


class EpisodeResult(NamedTuple):
    """The result of an episode."""

    reward: float
    costs: tuple[float, ...]  # one for each constraint
    steps: int


def play(
    environment: Environment, agent: Agent, episodes: int, on_episode: Callable[[EpisodeResult], None] | None = None
) -> list[EpisodeResult]:
    """Play that many episodes; `on_episode` is called after each is learned."""
    results = []
    for _ in range(episodes):
        results.append(play_episode(environment, agent))
        if on_episode is not None:
            on_episode(results[-1])
    return results


def play_episode(environment: Environment, agent: Agent) -> EpisodeResult:
    """Play until the agent's horizon or the environment's end. If anything fails, the episode is abandoned."""
    state = environment.reset()
    action: int | None = agent.begin(state)
    total, steps = 0.0, 0
    totals: list[float] = []
    try:
        while action is not None:
            next_state, reward, costs, done = environment.step(action)
            action = agent.step(state, action, next_state, reward, costs, done)
            totals = [sum_ + cost for sum_, cost in zip(totals or [0.0] * len(costs), costs, strict=True)]
            total, state, steps = total + reward, next_state, steps + 1
        agent.finish()
    except BaseException:
        agent.abandon()
        raise
    return EpisodeResult(total, tuple(totals), steps)
