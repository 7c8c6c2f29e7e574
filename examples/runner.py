"""Shared by the examples: options, an agent in this process or in a service, and a table of the results."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from safe_psrl import SafePsrlOptions
from safe_psrl_client import Client, EpisodeResult, RemoteAgent, play
from safe_psrl_testbed import LocalAgent
from safe_psrl_testbed.gym_bridge import GymBridge
from safe_psrl_testbed.simulation import prepare_agent

PARTS = 4  # of a run, a row each
HUNDRED = 100  # episodes


def options(what: str, episodes: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--episodes", type=int, default=episodes, help="how many to play (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the agent and the environment (%(default)s)")
    parser.add_argument("--target", help="a service, such as 127.0.0.1:50551; without, the agent is in this process")
    parser.add_argument("--agent", default=Path(parser.prog).stem, help="its name in the service (%(default)s)")
    return parser


def learn(bridge: GymBridge, chosen: argparse.Namespace) -> list[EpisodeResult]:
    """Play with certified plans."""
    if chosen.target is None:
        return play(bridge, LocalAgent(bridge.spec, SafePsrlOptions("certified"), chosen.seed), chosen.episodes)
    with Client(chosen.target) as client:
        prepare_agent(client, chosen.agent, bridge.definition(method="certified", seed=chosen.seed), "this example")
        return play(bridge, RemoteAgent(client, chosen.agent, "local", abandon_open=True), chosen.episodes)


def follow(bridge: GymBridge, rule: Callable[[int], int], episodes: int) -> list[EpisodeResult]:
    """What a fixed rule from states to actions gives."""
    results = []
    for _ in range(episodes):
        state, done, seen = bridge.reset(), False, []
        while not done:
            state, reward, costs, done = bridge.step(rule(state))
            seen.append((reward, *costs))
        reward, *costs = np.sum(seen, axis=0).tolist()
        results.append(EpisodeResult(reward, tuple(costs), len(seen)))
    return results


def show(bridge: GymBridge, results: Sequence[EpisodeResult], optimum: float | None = None) -> None:
    """Means of an episode, part by part, and the constraint regret at the end of each part."""
    names, budgets = bridge.spec.constraint_names, bridge.spec.cost_budgets
    columns = ["episodes", "reward", *(column for name in names for column in (name, "budget", "constraint regret"))]
    line(columns)
    line(["---:"] * len(columns))
    costs = np.array([result.costs for result in results])  # [K, M]
    rewards = np.array([result.reward for result in results])
    regret = np.cumsum(costs - budgets, axis=0)
    for part in np.array_split(np.arange(len(results)), PARTS):
        row = [f"{part[0] + 1:,} to {part[-1] + 1:,}", f"{rewards[part].mean():.3f}"]
        for i, budget in enumerate(budgets):
            row += [f"{costs[part, i].mean():.3f}", f"{budget:g}", f"{regret[part[-1], i]:+.1f}"]
        line(row)
    if optimum is not None:
        line([f"best within {'the budget' if len(names) == 1 else 'both budgets'}", f"{optimum:.3f}", *[""] * (3 * len(names))])
    held = [name for i, name in enumerate(names) if regret[-1, i] <= 0]
    write("")
    write(f"constraint held: {', '.join(held) or 'none'} ({len(held)} of {len(names)})")


def show_hundreds(bridge: GymBridge, results: Sequence[EpisodeResult]) -> None:
    """The greatest mean cost of 100 episodes in a row, counted from the first, and the share of goals among the last."""
    parts = [results[i : i + HUNDRED] for i in range(0, len(results), HUNDRED)]
    means = np.array([np.mean([result.costs for result in part], axis=0) for part in parts])  # [parts, M]
    for name, budget, greatest in zip(bridge.spec.constraint_names, bridge.spec.cost_budgets, means.max(axis=0), strict=True):
        write(f"greatest mean of {name} in {HUNDRED} episodes: {greatest:.2f} of {budget:g}")
    write(f"goal reached in {np.mean([result.reward for result in results[-HUNDRED:]]):.0%} of the last {HUNDRED}")


def line(cells: Sequence[str]) -> None:
    write("| " + " | ".join(cells) + " |")


write = partial(print, flush=True)
