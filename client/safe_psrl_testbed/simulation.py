"""Simulated environments played against the agents of a service, several at a time, with their results."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc
import numpy as np

from safe_psrl.arrays import Policy
from safe_psrl.methods.episode import COST_TOLERANCE
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.problem.documents import spec_to_document
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_client import (
    Client,
    EpisodeResult,
    InvalidArgumentError,
    Mode,
    NotFoundError,
    RemoteAgent,
    SafePsrlClientError,
    spec_from_document,
)
from safe_psrl_client.play import play_episode, play_steps
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_testbed.changing import ChangingScenario

SHADOW: Final = "shadow"  # the mode
CALL_SECONDS: Final = 60.0  # the first plan of a kind may be compiled before
GRACE_SECONDS: Final = 3.0  # for current episodes when the simulation is stopped


class Totals:
    """Sums over episodes; over steps of a continuing task, of which none is a violation by itself."""

    def __init__(self, spec: CmdpSpec) -> None:
        self.episodes = 0
        self._spec = spec
        self._reward = 0.0
        self._objective_regret = 0.0
        self._costs = np.zeros(spec.num_constraints)
        self._violations = np.zeros(spec.num_constraints, np.int64)

    def add(self, result: EpisodeResult, regret: float) -> None:
        self.episodes += 1
        self._reward += result.reward
        self._objective_regret += regret
        self._costs += result.costs
        if not self._spec.is_continuing:
            self._violations += np.asarray(result.costs) > self._spec.cost_budgets + COST_TOLERANCE

    def summary(self) -> dict[str, Any]:
        spec, count = self._spec, max(self.episodes, 1)
        return {
            "episodes": self.episodes,
            "mean_reward": self._reward / count,
            "objective_regret": self._objective_regret,
            "constraints": [
                {
                    "name": name,
                    "mean_cost": float(self._costs[i]) / count,
                    "cost_budget": float(spec.cost_budgets[i]),
                    "violations": int(self._violations[i]),
                }
                for i, name in enumerate(spec.constraint_names)
            ],
        }


class Player:
    """Plays the agent `name` that many episodes, and sums its rewards and costs against the exact optimum."""

    def __init__(self, changing: ChangingScenario, name: str, mode: Mode, seed: int, episodes: int) -> None:
        self.name = name
        self.seed = seed
        self._episodes = episodes
        self._mode = mode
        self._spec = changing.first.spec
        self._environment = changing.first.environment(seed)
        self._optimum = exact_optimum(self._spec, self._environment.transitions)
        self._changes = changing.changes_for(seed, episodes)
        self._totals = Totals(self._spec)
        self._totals_since_change: Totals | None = None  # the last change of `then`
        self._walks = changing.walk is not None
        self._dual_variables: list[float] | None = None
        self._detections: int | None = None
        if mode == "local" and not self._spec.is_continuing:  # compile the kernel before the first episode
            self._value_of(np.zeros((self._spec.horizon, self._spec.num_states), np.int32))

    @property
    def episodes(self) -> int:
        """Played so far."""
        return self._totals.episodes

    def play(self, client: Client, stopping: threading.Event, on_episode: Callable[[], object]) -> None:
        """Play all episodes, or until `stopping`. An episode that was left open is abandoned."""
        try:
            with RemoteAgent(client, self.name, self._mode, abandon_open=True) as agent:
                if self._spec.is_continuing:
                    self._play_on(agent, stopping, on_episode)
                while self.episodes < self._episodes and not stopping.is_set() and not self._spec.is_continuing:
                    if self.episodes in self._changes:
                        self._change()
                    self._enter(play_episode(self._environment, agent), agent.policy)
                    on_episode()
        except Exception:
            if not stopping.is_set():  # the client was closed because the player did not stop in time
                raise
        with suppress(SafePsrlClientError, ValueError):
            status = client.get_agent(self.name).status
            self._dual_variables = [constraint.dual_variable for constraint in status.constraints]
            self._detections = status.drift_detections

    def _play_on(self, agent: RemoteAgent, stopping: threading.Event, on_step: Callable[[], object]) -> None:
        """Play as many steps of a continuing task."""
        for result in play_steps(self._environment, agent):
            self._enter(result, None)
            on_step()
            if self.episodes >= self._episodes or stopping.is_set():
                return
            if self.episodes in self._changes:
                self._change()

    def summary(self) -> dict[str, Any]:
        """`optimum` is that of the world as it is now; detections of drift are those since the agent was created."""
        totals = self._totals.summary()
        for i, constraint in enumerate(totals["constraints"]):
            constraint["dual_variable"] = None if self._dual_variables is None else self._dual_variables[i]
        since = {} if self._totals_since_change is None else {"since_change": self._totals_since_change.summary()}
        optimum = {"reward": self._optimum.reward, "costs": self._optimum.costs.tolist()}
        return {"agent": self.name, **totals, "optimum": optimum, "drift_detections": self._detections, **since}

    def _change(self) -> None:
        self._environment.move_to(self._changes[self.episodes])
        self._optimum = exact_optimum(self._spec, self._environment.transitions)
        if not self._walks:
            self._totals_since_change = Totals(self._spec)

    def _enter(self, result: EpisodeResult, policy: model_pb2.Policy | None) -> None:
        earned = result.reward
        if policy is not None:
            earned = self._value_of(np.array(policy.actions, np.int32).reshape(policy.horizon, -1))
        for totals in (self._totals, self._totals_since_change):
            if totals is not None:
                totals.add(result, self._optimum.reward - earned)

    def _value_of(self, policy: Policy) -> float:
        """The expected reward of `policy` [H, S] on the true kernel."""
        values = np.empty((1 + self._spec.num_constraints, self._spec.num_states))
        transitions = self._environment.transitions
        evaluate_policy(transitions, self._spec.next_states, self._spec.signals, policy, values)
        return float(values[0] @ self._spec.initial_distribution)


class Simulation:
    """`parallel` agents called `name`-1, `name`-2, … (one is just `name`), each with its own environment and client.

    Agent i and its environment have the seed `seed` + i - 1. With `create`, `prepare` creates agents that are missing.
    """

    def __init__(
        self,
        changing: ChangingScenario,
        target: str,
        name: str,
        episodes: int,
        *,
        parallel: int = 1,
        mode: Mode = "step",
        seed: int = 1,
        create: bool = True,
        patience: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        names = [name] if parallel == 1 else [f"{name}-{i + 1}" for i in range(parallel)]
        self.changing = changing
        self.scenario = changing.first
        self.episodes = episodes
        self.unit = "step" if self.scenario.spec.is_continuing else "episode"  # what is counted as an episode
        self.mode = mode
        self._client = partial(Client, target, timeout=CALL_SECONDS, patience=patience, credentials=credentials, token=token)
        self._players = [Player(changing, agent, mode, seed + i, episodes) for i, agent in enumerate(names)]
        self._create = create
        self._stopping = threading.Event()
        self._interrupted = False
        self._seconds = 0.0

    def prepare(self) -> None:
        """Check that every agent exists and is for this problem; create those that are missing."""
        definition = spec_from_document(spec_to_document(self.scenario.spec))
        with self._client() as client:
            for player in self._players:
                definition.seed = player.seed
                prepare_agent(client, player.name, definition, self.scenario.name, create=self._create)

    def run(self, on_episode: Callable[[], object] = lambda: None) -> None:
        """Play. Ctrl-C stops after the current episodes; the first error stops all and is raised."""
        clients = [self._client() for _ in self._players]
        began = time.monotonic()
        pool = ThreadPoolExecutor(len(self._players), thread_name_prefix="simulation")
        played: list[Future[None]] = []
        try:
            played = [
                pool.submit(player.play, client, self._stopping, on_episode)
                for player, client in zip(self._players, clients, strict=True)
            ]
            wait(played, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._stopping.set()
            wait(played, timeout=GRACE_SECONDS)
            self._seconds = time.monotonic() - began
            for client in clients:
                client.close()
            pool.shutdown()
        for future in played:
            future.result()

    def summary(self) -> dict[str, Any]:
        episodes = sum(player.episodes for player in self._players)
        return {
            "environment": self.scenario.name,
            "changes": [{"after_episodes": after, "environment": later.name} for after, later in self.changing.then],
            "mode": self.mode,
            "regret": "exact" if self.mode == "local" and self.unit == "episode" else "realised",
            "interrupted": self._interrupted,
            "unit": self.unit,
            "episodes": episodes,
            "seconds": self._seconds,
            "episodes_per_second": episodes / self._seconds if self._seconds else 0.0,
            "agents": [player.summary() for player in self._players],
        }


def prepare_agent(client: Client, name: str, definition: model_pb2.AgentSpec, problem: str, *, create: bool = True) -> None:
    """Check that the agent `name` exists, is for this problem and in this mode; with `create`, create it if it is missing."""
    try:
        found = client.get_agent(name, with_spec=True).spec
    except NotFoundError:
        if not create:
            raise NotFoundError(f"there is no agent {name}: correct --agent, or add --create to create it") from None
        client.create_agent(name, definition)
        return
    theirs, ours = _shape(found.cmdp), _shape(definition.cmdp)
    if theirs != ours:
        raise InvalidArgumentError(
            f"agent {name} is not for {problem}: its states, actions, horizon and "
            f"constraints are {theirs}, not {ours}; choose another --agent"
        )
    if (found.mode == SHADOW) != (definition.mode == SHADOW):
        state = "in shadow: promote it, or choose" if found.mode == SHADOW else "live already: choose"
        raise InvalidArgumentError(f"agent {name} is {state} another --agent")
    if found.max_open_episodes < definition.max_open_episodes:
        raise InvalidArgumentError(
            f"agent {name} allows {found.max_open_episodes} open episodes, but {definition.max_open_episodes} "
            "are needed; choose another --agent"
        )


def _shape(cmdp: model_pb2.CmdpSpec) -> tuple[int, int, int, int]:
    return cmdp.num_states, cmdp.num_actions, cmdp.horizon, len(cmdp.constraints)
