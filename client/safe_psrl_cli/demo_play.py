"""The demo's simulator: counts what was acknowledged, kills the server, and compares the counts with the stored ones."""

import json
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.live import Live
from rich.table import Table

from safe_psrl import SafePsrl, SimulatedRun
from safe_psrl_cli.child_process import ServerProcess
from safe_psrl_client import Client, RemoteAgent
from safe_psrl_client.play import play_episode
from safe_psrl_experiments.figures import moving_mean
from safe_psrl_testbed import scenario_named

PRESET: Final = "streaming-buffer"
SEED: Final = 1
RECENT: Final = 200  # episodes of a mean
READ_SECONDS: Final = 0.25  # between reads of the dual variable
PATIENCE: Final = 120.0


@dataclass
class Story:
    """What happened, episode by episode."""

    budget: float
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    duals: list[tuple[int, float]] = field(default_factory=list)  # (episode, value)
    killed_at: int = 0


class TallyingAgent(RemoteAgent):
    """Counts what was acknowledged. Plays the policy locally, two calls per episode, to learn much in little time."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(client, name, "local")
        self.acknowledged: Counter[tuple[int, int, int]] = Counter()
        self._played: list[tuple[int, int, int]] = []

    def step(self, state: int, action: int, next_state: int, *rest: Any) -> int | None:
        self._played.append((state, action, next_state))
        return super().step(state, action, next_state, *rest)

    def finish(self) -> None:
        super().finish()
        self.acknowledged.update(self._played)
        self._played.clear()


class DemoPlay:
    """Plays for some seconds against a server that is killed half way."""

    def __init__(self, server: ServerProcess, console: Console) -> None:
        self._server, self._console = server, console
        self._scenario = scenario_named(PRESET)
        self._client = Client(server.target, patience=PATIENCE)
        self._name = self._create()
        self._agent = TallyingAgent(self._client, self._name)
        self._story = Story(budget=float(self._scenario.spec.cost_budgets[0]))
        self._seconds = 0.0
        self._outage = 0.0

    def run(self, seconds: float) -> bool:
        """Play whole episodes for that long; whether Ctrl-C came first."""
        environment = self._scenario.environment(SEED)
        crash = threading.Timer(seconds / 2, self._crash)
        began, read_at = time.monotonic(), 0.0
        crash.start()
        interrupted = False
        try:
            with Live(get_renderable=self._live, console=self._console, refresh_per_second=8):
                while time.monotonic() - began < seconds:
                    result = play_episode(environment, self._agent)
                    self._story.rewards.append(result.reward)
                    self._story.costs.append(result.costs[0])
                    if time.monotonic() - read_at > READ_SECONDS:
                        read_at = time.monotonic()
                        self._read_dual()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            crash.cancel()
            crash.join()
        self._seconds = time.monotonic() - began
        self._read_dual()
        return interrupted

    def summary(self) -> dict[str, Any]:
        """The results, and whether everything acknowledged is stored exactly once."""
        status = self._client.get_agent(self._name).status
        packed = self._client.get_posterior(self._name).transition_counts
        stored = np.frombuffer(zlib.decompress(packed.data), packed.dtype).reshape(tuple(packed.shape))
        tally = np.zeros(stored.shape, np.int64)
        for place, count in self._agent.acknowledged.items():
            tally[(0, *place)] = count
        learner = SafePsrl(self._scenario.spec, seed=SEED)
        run = SimulatedRun(learner, self._scenario.transitions_for(SEED), environment_seed=SEED)
        run.advance(status.episode)
        same = (
            np.array_equal(run.state.transition_counts, stored) and run.dual_variables[0] == status.constraints[0].dual_variable
        )
        return {
            "episodes": status.completed_episodes,
            "transitions": status.transitions,
            "steps_per_second": status.transitions / (self._seconds - self._outage),
            "recent_cost": _mean(self._story.costs),
            "recent_reward": _mean(self._story.rewards),
            "optimum_reward": run.world.best_reward,
            "cost_budget": self._story.budget,
            "constraint_regret": status.constraints[0].constraint_regret,
            "constraint_regret_max": status.constraints[0].constraint_regret_max,
            "dual_variable": status.constraints[0].dual_variable,
            "killed_at_episode": self._story.killed_at,
            "outage_seconds": self._outage,
            "nothing_lost": bool(np.array_equal(tally, stored)) and status.transitions == int(tally.sum()),
            "equals_uninterrupted": bool(same),
        }

    def write(self, directory: Path, summary: dict[str, Any]) -> list[Path]:
        self._client.close()
        path = directory / "summary.json"
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        return [_draw(directory / "demo.png", self._story, summary["optimum_reward"]), path]

    def _create(self) -> str:
        """A new agent; its name has a number if the store has agents of previous demos."""
        taken = {status.agent for status in self._client.list_agents()}
        name = next(name for name in ("demo", *(f"demo-{i}" for i in range(2, 10_000))) if name not in taken)
        self._client.create_agent(name, PRESET, seed=SEED)
        return name

    def _read_dual(self) -> None:
        constraint = self._client.get_agent(self._name).status.constraints[0]
        self._story.duals.append((len(self._story.costs), constraint.dual_variable))

    def _crash(self) -> None:
        self._story.killed_at = len(self._story.costs)
        began = time.monotonic()
        self._server.kill()
        self._console.print(
            f"Killed the server with SIGKILL during episode {self._story.killed_at + 1}; restarting it …", highlight=False
        )
        self._server.start()
        self._outage = time.monotonic() - began
        self._console.print(f"It is back after {self._outage:.2f} s, and the simulator continues.", highlight=False)

    def _live(self) -> Table:
        story = self._story
        table = Table(title=f"Learning {PRESET} over gRPC (means of the last {RECENT} episodes)", title_justify="left")
        for heading in ("episode", "cost", "budget", "reward", "dual variable"):
            table.add_column(heading, justify="right", min_width=10)
        dual = f"{story.duals[-1][1]:,.1f}" if story.duals else "-"
        table.add_row(
            f"{len(story.costs):,}", f"{_mean(story.costs):.2f}", f"{story.budget:g}", f"{_mean(story.rewards):.2f}", dual
        )
        return table


def _mean(values: list[float]) -> float:
    last = values[-RECENT:]
    return sum(last) / len(last) if last else 0.0


def _draw(path: Path, story: Story, optimum_reward: float) -> Path:
    """Cost against its budget, reward, and the dual variable, with the crash marked."""
    figure = Figure(figsize=(8, 8), layout="constrained")
    cost, reward, dual = figure.subplots(3, 1, sharex=True)
    cost.plot(*moving_mean(story.costs, RECENT), color="#0072B2", label=f"cost, mean of {RECENT} episodes")
    cost.axhline(story.budget, color="#D55E00", linestyle="--", label="budget")
    cost.set(ylabel="cost of an episode", ylim=(0, None), title="Streaming buffer, learned through the service")
    reward.plot(*moving_mean(story.rewards, RECENT), color="#009E73", label=f"reward, mean of {RECENT} episodes")
    reward.axhline(optimum_reward, color="black", linestyle=":", label="exact constrained optimum")
    reward.set(ylabel="reward of an episode", ylim=(0, None))
    if story.duals:
        dual.plot(*zip(*story.duals, strict=True), color="#CC79A7", label="dual variable")
    dual.set(ylabel="dual variable", xlabel="episode")
    for axis in (cost, reward, dual):
        if story.killed_at:
            axis.axvline(story.killed_at, color="#555555", linewidth=1.2, linestyle="-.", label="server killed, restarted")
        axis.grid(alpha=0.3)
        axis.legend(loc="best", fontsize=8)
    figure.savefig(path, dpi=140)
    return path
