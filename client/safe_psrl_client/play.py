"""The loop between an environment and an agent."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from safe_psrl_client.agent import Agent
from safe_psrl_client.errors import InvalidArgumentError


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


Controller = Callable[[int, int], int]  # the action for a step, from 0, and a state


def play(
    environment: Environment,
    agent: Agent,
    episodes: int,
    on_episode: Callable[[EpisodeResult], None] | None = None,
    incumbent: Controller | None = None,
) -> list[EpisodeResult]:
    """Play that many episodes; `on_episode` is called after each one is learned.

    `incumbent`, the controller in charge, acts while the agent is in shadow. Without it, a shadow agent is an
    `InvalidArgumentError`.
    """
    results = []
    for _ in range(episodes):
        results.append(play_episode(environment, agent, incumbent))
        if on_episode is not None:
            on_episode(results[-1])
    return results


def play_episode(environment: Environment, agent: Agent, incumbent: Controller | None = None) -> EpisodeResult:
    """Play until the agent's horizon or the environment's end. If anything fails, the episode is abandoned."""
    state = environment.reset()
    action: int | None = agent.begin(state)
    total, steps = 0.0, 0
    totals: list[float] = []
    try:
        while action is not None:
            executed = _executed(agent, action, incumbent, steps, state)
            next_state, reward, costs, done = environment.step(executed)
            action = agent.step(state, executed, next_state, reward, costs, done)
            totals = [sum_ + cost for sum_, cost in zip(totals or [0.0] * len(costs), costs, strict=True)]
            total, state, steps = total + reward, next_state, steps + 1
        agent.finish()
    except BaseException:
        agent.abandon()
        raise
    return EpisodeResult(total, tuple(totals), steps)


def play_steps(environment: Environment, agent: Agent, incumbent: Controller | None = None) -> Iterator[EpisodeResult]:
    """Play a continuing task, a step for each result, for as long as results are requested or until the agent is paused.

    The environment is reset once, and begins where the agent's task is if that runs already, or the agent was made with
    `abandon_open`.
    """
    state, number = environment.reset(), 0
    action: int | None = agent.begin(state)
    try:
        while action is not None:
            executed = _executed(agent, action, incumbent, number, state)
            next_state, reward, costs, _ = environment.step(executed)
            action = agent.step(state, executed, next_state, reward, costs)
            state, number = next_state, number + 1
            yield EpisodeResult(reward, tuple(costs), 1)
    finally:
        agent.finish()


def _executed(agent: Agent, proposed: int, incumbent: Controller | None, step: int, state: int) -> int:
    if not agent.advisory:
        return proposed
    if incumbent is None:
        raise InvalidArgumentError("the agent is in shadow: its actions are proposals; give the incumbent that acts")
    return incumbent(step, state)
