"""An agent as the fold of its events. Applying an event never fails, samples or plans: events record outcomes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Policy
from safe_psrl.learner import AgentState, Tables, Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.definition import Definition, definition_of, policy_from_message, unpack
from safe_psrl_server.agents.events import read_policy, read_steps


@dataclass(slots=True)
class Totals:
    """The fields of `events_pb2.Totals`, as plain numbers."""

    constraint_regret: list[float]
    constraint_regret_max: list[float]
    violations: list[int]
    last_costs: list[float]
    strong_violation: list[float]
    completed_episodes: int = 0
    transitions: int = 0
    overridden_actions: int = 0
    reward: float = 0.0
    last_reward: float = 0.0

    @classmethod
    def blank(cls, num_constraints: int) -> Self:
        zeros = [0.0] * num_constraints
        return cls(zeros, zeros.copy(), [0] * num_constraints, zeros.copy(), zeros.copy())

    @classmethod
    def read(cls, message: events_pb2.Totals) -> Self:
        values: Any = {field.name: getattr(message, field.name) for field in fields(cls)}
        for name in ("constraint_regret", "constraint_regret_max", "violations", "last_costs", "strong_violation"):
            values[name] = values[name][:]  # a list of its own
        return cls(**values)

    def message(self) -> events_pb2.Totals:
        return events_pb2.Totals(**{field.name: getattr(self, field.name) for field in fields(self)})

    def complete(self, reward: float, costs: Sequence[float], budgets: Sequence[float]) -> None:
        """Add an episode that was played to its end."""
        self.completed_episodes += 1
        self.reward += reward
        self.last_reward = reward
        self.last_costs[:] = costs
        for i, (cost, budget) in enumerate(zip(costs, budgets, strict=True)):
            regret = self.constraint_regret[i] = self.constraint_regret[i] + (cost - budget)
            self.constraint_regret_max[i] = max(self.constraint_regret_max[i], regret)
            self.violations[i] += cost > budget
            self.strong_violation[i] += max(0.0, cost - budget)


COMPLETED: Final = events_pb2.EPISODE_END_COMPLETED
OPEN: Final = events_pb2.EPISODE_END_UNSPECIFIED
SNAPSHOT_FORMAT: Final = 1


@dataclass(eq=False)
class Episode:
    """An episode that is open, or one that was closed recently."""

    started: events_pb2.EpisodeStarted
    active_micros: int
    end: "events_pb2.EpisodeEnd.ValueType" = OPEN
    transitions: list[Transition] = field(default_factory=list)

    @cached_property
    def number(self) -> int:
        return self.started.episode

    @cached_property
    def policy(self) -> Policy:
        """[H, S]."""
        return policy_from_message(self.started.policy)

    @property
    def lacks_policy(self) -> bool:
        """Whether its policy is stored beside the stream and was not read yet."""
        return self.is_apart and not self.started.policy.actions

    @property
    def is_apart(self) -> bool:
        """Whether its policy is stored beside the stream."""
        return bool(self.started.policy_digest)

    def overridden(self, steps: Sequence[Transition]) -> int:
        """The number of `steps` whose action is not the proposed one."""
        proposed = self.policy.item
        return sum([proposed(step.step, step.state) != step.action for step in steps])

    @property
    def next_step(self) -> int:
        return len(self.transitions)

    @property
    def is_open(self) -> bool:
        return self.end == OPEN


class AgentRecord:
    """What is known of one agent after `version` events. Changed by `apply` only."""

    definition: Definition  # set once the agent exists
    dual_variables: Floats
    _tables: Tables
    _visited: NDArray[np.bool_]  # [S, A]

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.exists = False
        self.paused = False
        self.pause_reason = ""
        self.created_micros = 0
        self.episode = 0  # episodes started
        self.episodes: dict[int, Episode] = {}  # by number, oldest first: the open ones and as many closed ones
        self.totals = Totals.blank(0)
        self.visited_pairs = 0  # (state, action) pairs

    @property
    def state(self) -> AgentState:
        """The learned state. Its tables are views that change with the record."""
        return self.state_after(())

    def state_after(self, steps: Sequence[Transition]) -> AgentState:
        """The learned state once `steps` are observed, too."""
        views = Tables(*[table.view() for table in self._tables])
        return AgentState(self.episode, self.dual_variables, *views, tuple(steps))

    @property
    def visited_ratio(self) -> float:
        """Share of the available (state, action) pairs that were visited."""
        return self.visited_pairs / self.definition.available_pairs

    @property
    def open_episodes(self) -> list[Episode]:
        return [episode for episode in self.episodes.values() if episode.is_open]

    @property
    def latest_episode(self) -> Episode | None:
        return next(reversed(self.episodes.values()), None)

    def apply(self, event: events_pb2.Event) -> None:  # noqa: C901  # one branch for each kind
        """Fold one more event in."""
        kind = event.WhichOneof("kind")
        if kind == "transitions_observed":
            number, steps, overridden = read_steps(event.transitions_observed)
            episode = self.episodes[number]
            for step in steps:
                self.definition.learner.count(self._tables, step)
                if not self._visited[step.state, step.action]:
                    self._visited[step.state, step.action] = True
                    self.visited_pairs += 1
            episode.transitions += steps
            episode.active_micros = event.time_micros
            self.totals.transitions += len(steps)
            self.totals.overridden_actions += overridden
        elif kind == "episode_started":
            self._start(event)
        elif kind == "episode_ended":
            self._end(event.episode_ended)
        elif kind == "agent_created":
            self._define(definition_of(event.agent_created.spec), event.time_micros)
        elif kind == "agent_paused":
            self.paused, self.pause_reason = True, event.agent_paused.reason
        elif kind == "agent_resumed":
            self.paused, self.pause_reason = False, ""
        elif kind == "agent_deleted":
            self.exists = False
            self.episodes.clear()
        elif kind == "agent_imported":
            self.restore(event.agent_imported.snapshot)
            self.created_micros = event.time_micros
            for kept in self.episodes.values():
                kept.started.incarnation = event.time_micros
        else:
            raise ValueError(f"event {self.version + 1} of {self.name} has an unknown kind")
        self.version += 1

    def restore(self, snapshot: events_pb2.Snapshot) -> None:
        """Take over everything in `snapshot` but its version. Raises ValueError if it is malformed."""
        if snapshot.format != SNAPSHOT_FORMAT:
            raise ValueError(f"the snapshot has format {snapshot.format}; this release reads {SNAPSHOT_FORMAT}")
        self._define(definition_of(snapshot.spec), snapshot.created_micros)
        self._restore_tables(snapshot)
        self.episode = snapshot.episode
        self.totals = Totals.read(snapshot.totals)
        self.paused, self.pause_reason = snapshot.paused, snapshot.pause_reason
        for kept in snapshot.episodes:
            steps = read_steps(kept.transitions).steps
            if steps and (kept.transitions.episode, kept.transitions.first_step) != (kept.started.episode, 0):
                raise ValueError(f"the steps of episode {kept.started.episode} are out of place")
            self.episodes[kept.started.episode] = Episode(kept.started, kept.active_micros, kept.end, list(steps))

    def attach(self, policies: Mapping[int, bytes]) -> None:
        """Give episodes the policies that are stored beside the stream. Raises ValueError if one is missing or changed."""
        for episode in self.episodes.values():
            if episode.lacks_policy:
                episode.started.policy.CopyFrom(read_policy(episode.started, policies.get(episode.number)))

    def obsolete_policies(self, events: Sequence[events_pb2.Event]) -> list[int]:
        """The episodes whose policy is stored beside the stream and cannot be requested after `events`."""
        apart = [number for number, episode in self.episodes.items() if episode.is_apart]
        if not apart:
            return []
        ends = {number: episode.end for number, episode in self.episodes.items()}
        for event in events:
            kind = event.WhichOneof("kind")
            if kind == "episode_ended":
                ends[event.episode_ended.episode] = event.episode_ended.end
            elif kind == "episode_started":
                for number in self._expired(ends):
                    del ends[number]
        return [number for number in apart if number not in ends]

    def digest(self) -> str:
        """Equal for equal learned states, regardless of snapshots and restarts in between."""
        digest = hashlib.sha256(self.definition.message.SerializeToString(deterministic=True))
        digest.update(f"{self.episode} {self.paused}".encode())
        for table in (self.dual_variables, *self._tables):
            digest.update(np.ascontiguousarray(table).tobytes())
        digest.update(self.totals.message().SerializeToString(deterministic=True))
        return digest.hexdigest()

    def _define(self, definition: Definition, created_micros: int) -> None:
        """Become a new agent that has learned nothing."""
        self.paused, self.pause_reason = False, ""
        self.created_micros = created_micros
        self.definition = definition
        blank = definition.learner.initial_state()
        self.episode, self.dual_variables = 0, blank.dual_variables
        self._tables = blank.tables.copy()
        self._visited, self.visited_pairs = np.zeros(definition.spec.available_actions.shape, np.bool_), 0
        self.episodes = {}
        self.totals = Totals.blank(definition.spec.num_constraints)
        self.exists = True  # last: metrics are collected in another thread

    def _restore_tables(self, snapshot: events_pb2.Snapshot) -> None:
        duals = np.array(snapshot.dual_variables, np.float64)
        if duals.shape != self.dual_variables.shape:
            raise ValueError(f"the snapshot has {len(duals)} dual variables, expected {len(self.dual_variables)}")
        self.dual_variables = duals
        self._tables = Tables(*[unpack(getattr(snapshot, name), getattr(self._tables, name).shape) for name in Tables._fields])
        self._visited = np.any(self._tables.transition_counts, axis=(0, -1))
        self.visited_pairs = int(np.count_nonzero(self._visited))

    def _start(self, event: events_pb2.Event) -> None:
        started = event.episode_started
        self.episode = started.episode
        self.dual_variables = np.array(started.next_dual_variables[:], np.float64)
        self.episodes[started.episode] = Episode(started, event.time_micros)
        for number in self._expired({number: episode.end for number, episode in self.episodes.items()}):
            del self.episodes[number]

    def _expired(self, ends: "Mapping[int, events_pb2.EpisodeEnd.ValueType]") -> list[int]:
        """Episodes that are dropped when another one begins: as many closed ones are kept as may be open."""
        return [number for number, end in ends.items() if end != OPEN][: -self.definition.max_open_episodes]

    def _end(self, ended: events_pb2.EpisodeEnded) -> None:
        self.episodes[ended.episode].end = ended.end
        if ended.end == COMPLETED:
            self.totals.complete(ended.reward, ended.costs, self.definition.cost_budgets)
