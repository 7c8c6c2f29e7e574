"""The demo's simulator: counts what was acknowledged, kills the server, and compares the counts with the stored ones."""

import json
import threading
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from safe_psrl import SafePsrlOptions, exact_optimum
from safe_psrl_cli.child_process import ServerProcess
from safe_psrl_cli.demo_history import METHOD, RECENT, History
from safe_psrl_client import Client, RemoteAgent
from safe_psrl_client.play import play, play_episode
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_testbed import Environment, LocalAgent, scenario_named

PRESET: Final = "streaming-buffer"
SEED: Final = 1
READ_SECONDS: Final = 0.25  # between reads of the safety margin
PATIENCE: Final = 120.0


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
    """Plays for some seconds against a server that is killed halfway."""

    def __init__(self, server: ServerProcess, console: Console) -> None:
        self._server, self._console = server, console
        self._scenario = scenario_named(PRESET)
        self._client = Client(server.target, patience=PATIENCE)
        self._name = self._create()
        self._agent = TallyingAgent(self._client, self._name)
        self._history = History(budget=float(self._scenario.spec.cost_budgets[0]))
        self._seconds = 0.0
        self._outage = 0.0

    def run(self, seconds: float) -> bool:
        """Play whole episodes for that long; whether Ctrl-C came first."""
        environment = self._scenario.environment(SEED)
        self._play_episode(environment)  # the first call may wait for kernels: the time counts from its end
        crash = threading.Timer(seconds / 2, self._crash)
        began, read_at = time.monotonic(), 0.0
        crash.start()
        interrupted = False
        try:
            with Live(get_renderable=self._live, console=self._console, refresh_per_second=8):
                while time.monotonic() - began < seconds:
                    self._play_episode(environment)
                    if time.monotonic() - read_at > READ_SECONDS:
                        read_at = time.monotonic()
                        self._read_margin()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if not self._console.is_terminal:
                self._console.line()  # ends the table, which `Live` does in a terminal only
            crash.cancel()
            crash.join()
        self._seconds = time.monotonic() - began
        self._read_margin()
        return interrupted

    def summary(self) -> dict[str, Any]:
        """The results, and whether everything acknowledged is stored exactly once."""
        status = self._client.get_agent(self._name).status
        packed = self._client.get_posterior(self._name).transition_counts
        stored = np.frombuffer(zlib.decompress(packed.data), packed.dtype).reshape(tuple(packed.shape))
        tally = np.zeros(stored.shape, np.int64)
        for place, count in self._agent.acknowledged.items():
            tally[(0, *place)] = count
        again = LocalAgent(self._scenario.spec, SafePsrlOptions(METHOD), SEED)
        play(self._scenario.environment(SEED), again, status.episode)
        return {
            "episodes": status.completed_episodes,
            "transitions": status.transitions,
            "steps_per_second": status.transitions / (self._seconds - self._outage),
            "recent_cost": _mean(self._history.costs),
            "recent_cost_error": _standard_error(self._history.costs),
            "recent_reward": _mean(self._history.rewards),
            "optimum_reward": exact_optimum(self._scenario.spec, self._scenario.transitions_for(SEED)).reward,
            "cost_budget": self._history.budget,
            "constraint_regret": status.constraints[0].constraint_regret,
            "constraint_regret_max": status.constraints[0].constraint_regret_max,
            "safety_margin": status.constraints[0].pessimism,
            "killed_at_episode": self._history.killed_at,
            "outage_seconds": self._outage,
            "nothing_lost": bool(np.array_equal(tally, stored)) and status.transitions == int(tally.sum()),
            "equals_uninterrupted": bool(np.array_equal(again.state.transition_counts, stored)),
        }

    def write(self, directory: Path, summary: dict[str, Any]) -> list[Path]:
        from safe_psrl_cli.demo_figure import draw  # noqa: PLC0415  # matplotlib loads slowly

        self._client.close()
        path = directory / "summary.json"
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        return [draw(directory / "demo.png", self._history, summary["optimum_reward"]), path]

    def _play_episode(self, environment: Environment) -> None:
        result = play_episode(environment, self._agent)
        self._history.rewards.append(result.reward)
        self._history.costs.append(result.costs[0])

    def _create(self) -> str:
        """A new agent; its name has a number if the store has agents of previous demos."""
        taken = {status.agent for status in self._client.list_agents()}
        name = next(name for name in ("demo", *(f"demo-{i}" for i in range(2, 10_000))) if name not in taken)
        self._client.create_agent(name, PRESET, options=model_pb2.SafePsrlOptions(method=METHOD), seed=SEED)
        return name

    def _read_margin(self) -> None:
        constraint = self._client.get_agent(self._name).status.constraints[0]
        self._history.margins.append((len(self._history.costs), constraint.pessimism))

    def _crash(self) -> None:
        self._history.killed_at = len(self._history.costs)
        began = time.monotonic()
        self._server.kill()
        self._console.print(
            f"Killed the server with SIGKILL during episode {self._history.killed_at + 1}; restarting it …", highlight=False
        )
        self._server.start()
        self._outage = time.monotonic() - began
        self._console.print(f"It is back after {self._outage:.2f} s, and the simulator continues.", highlight=False)

    def _live(self) -> Table:
        history = self._history
        table = Table(title=f"Learning {PRESET}: means of the last {RECENT:,} episodes", title_justify="left")
        for heading in ("episode", "cost", "budget", "reward", "safety margin"):
            table.add_column(heading, justify="right", min_width=10)
        margin = f"{history.margins[-1][1]:,.2f}" if history.margins else "-"
        table.add_row(
            f"{len(history.costs):,}",
            f"{_mean(history.costs):.2f}",
            f"{history.budget:g}",
            f"{_mean(history.rewards):.2f}",
            margin,
        )
        return table


def _mean(values: list[float]) -> float:
    last = values[-RECENT:]
    return sum(last) / len(last) if last else 0.0


def _standard_error(values: list[float]) -> float:
    last = values[-RECENT:]
    return float(np.std(last) / len(last) ** 0.5) if last else 0.0
