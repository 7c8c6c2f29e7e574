"""An agent as the fold of its events. Applying an event never fails, never samples and never plans: events are outcomes."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from safe_psrl.learner import AgentState, settle
from safe_psrl.planning import Policy
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.conversion import Definition, definition_of, policy_from_message, transition_from_event, unpack

COMPLETED = events_pb2.EPISODE_END_COMPLETED
OPEN = events_pb2.EPISODE_END_UNSPECIFIED
SNAPSHOT_FORMAT = 1


@dataclass(eq=False)
class Episode:
    """An episode that is open, or was closed lately."""

    started: events_pb2.EpisodeStarted
    policy: Policy  # [H, S]
    active_micros: int
    transitions: list[events_pb2.TransitionObserved] = field(default_factory=list)
    end: "events_pb2.EpisodeEnd.ValueType" = OPEN

    @property
    def number(self) -> int:
        return self.started.episode

    @property
    def next_step(self) -> int:
        return len(self.transitions)

    @property
    def is_open(self) -> bool:
        return self.end == OPEN

    @property
    def reward(self) -> float:
        return sum(transition.reward for transition in self.transitions)

    @property
    def costs(self) -> list[float]:
        totals = [0.0] * len(self.started.pessimism)
        for transition in self.transitions:
            for i, cost in enumerate(transition.costs):
                totals[i] += cost
        return totals


class AgentRecord:
    """What is known of one agent after `version` events. Changed by `apply` only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.exists = False
        self.paused = False
        self.pause_reason = ""
        self.created_micros = 0
        self.episodes: dict[int, Episode] = {}  # by number, oldest first: the open ones and as many closed ones
        self.totals = events_pb2.Totals()
        self._definition: Definition | None = None
        self._state: AgentState | None = None

    @property
    def definition(self) -> Definition:
        assert self._definition is not None  # noqa: S101  # callers have checked `exists`
        return self._definition

    @property
    def state(self) -> AgentState:
        assert self._state is not None  # noqa: S101  # callers have checked `exists`
        return self._state

    @property
    def open_episodes(self) -> list[Episode]:
        return [episode for episode in self.episodes.values() if episode.is_open]

    @property
    def latest_episode(self) -> Episode | None:
        return next(reversed(self.episodes.values()), None)

    def apply(self, event: events_pb2.Event) -> None:
        """Fold one more event in."""
        kind = event.WhichOneof("kind")
        if kind == "transition_observed":
            self._observe(event.transition_observed, event.time_micros)
        elif kind == "episode_started":
            self._start(event.episode_started, event.time_micros)
        elif kind == "episode_ended":
            self._end(event.episode_ended)
        elif kind == "agent_created":
            self.define(definition_of(event.agent_created.spec), event.time_micros)
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
        else:
            raise ValueError(f"event {self.version + 1} of {self.name} is of a kind that this version does not know")
        self.version += 1

    def define(self, definition: Definition, created_micros: int) -> None:
        """Become a new agent with nothing learned."""
        count = definition.spec.num_constraints
        self.paused, self.pause_reason = False, ""
        self.created_micros = created_micros
        self._definition = definition
        self._state = definition.learner.initial_state()
        self.episodes = {}
        self.totals = events_pb2.Totals(
            constraint_regret=[0.0] * count,
            constraint_regret_max=[0.0] * count,
            violations=[0] * count,
            last_costs=[0.0] * count,
        )
        self.exists = True  # last: scrapes look on from another thread

    def restore(self, snapshot: events_pb2.Snapshot) -> None:
        """Become what `snapshot` was taken of, all but its version. Raises ValueError if that cannot be."""
        if snapshot.format != SNAPSHOT_FORMAT:
            raise ValueError(f"the snapshot has format {snapshot.format}; this version reads {SNAPSHOT_FORMAT}")
        if snapshot.deleted:
            return
        self.define(definition_of(snapshot.spec), snapshot.created_micros)
        self._state = _state_of(snapshot, self.state)
        self.totals.CopyFrom(snapshot.totals)
        self.paused, self.pause_reason = snapshot.paused, snapshot.pause_reason
        for kept in snapshot.episodes:
            policy = policy_from_message(kept.started.policy)
            self.episodes[kept.started.episode] = Episode(
                kept.started, policy, kept.active_micros, list(kept.transitions), kept.end
            )

    def settled_state(self) -> AgentState:
        """The state with every reported transition in its counts. Learning goes on from it to the same end."""
        self._state = settle(self.definition.spec, self.state)
        return self._state

    def digest(self) -> str:
        """Equal for equal learned states, whatever snapshots and restarts lay between."""
        state = self.settled_state()
        digest = hashlib.sha256(self.definition.message.SerializeToString(deterministic=True))
        digest.update(f"{state.episode} {self.paused}".encode())
        for table in (state.dual_variables, state.transition_counts, state.signal_sums, state.visits):
            digest.update(np.ascontiguousarray(table).tobytes())
        digest.update(self.totals.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def _start(self, started: events_pb2.EpisodeStarted, time_micros: int) -> None:
        self._state = replace(
            settle(self.definition.spec, self.state),
            episode=started.episode,
            dual_variables=np.array(started.next_dual_variables, np.float64),
        )
        self.episodes[started.episode] = Episode(started, policy_from_message(started.policy), time_micros)
        closed = [episode.number for episode in self.episodes.values() if not episode.is_open]
        for number in closed[: -self.definition.max_open_episodes]:
            del self.episodes[number]

    def _observe(self, observed: events_pb2.TransitionObserved, time_micros: int) -> None:
        episode = self.episodes[observed.episode]
        self.totals.transitions += 1
        if episode.policy[observed.step, observed.state] != observed.action:
            self.totals.overridden_actions += 1
        episode.transitions.append(observed)
        episode.active_micros = time_micros
        state = self.state
        self._state = replace(state, pending=(*state.pending, transition_from_event(observed)))

    def _end(self, ended: events_pb2.EpisodeEnded) -> None:
        self.episodes[ended.episode].end = ended.end
        if ended.end != COMPLETED:
            return
        totals = self.totals
        totals.completed_episodes += 1
        totals.reward += ended.reward
        totals.last_reward = ended.reward
        for i, (cost, budget) in enumerate(zip(ended.costs, self.definition.spec.cost_budgets.tolist(), strict=True)):
            totals.last_costs[i] = cost
            totals.constraint_regret[i] += cost - budget
            totals.constraint_regret_max[i] = max(totals.constraint_regret_max[i], totals.constraint_regret[i])
            totals.violations[i] += cost > budget


def _state_of(snapshot: events_pb2.Snapshot, fresh: AgentState) -> AgentState:
    """The learned state in `snapshot`; `fresh` has the shapes that its specification calls for."""
    duals = np.array(snapshot.dual_variables, np.float64)
    counts = unpack(snapshot.transition_counts, fresh.transition_counts.shape)
    sums = unpack(snapshot.signal_sums, fresh.signal_sums.shape)
    visits = unpack(snapshot.visits, fresh.visits.shape)
    for name, table, wanted in (
        ("dual_variables", duals, fresh.dual_variables),
        ("transition_counts", counts, fresh.transition_counts),
        ("signal_sums", sums, fresh.signal_sums),
        ("visits", visits, fresh.visits),
    ):
        if table.shape != wanted.shape or table.dtype != wanted.dtype:
            raise ValueError(
                f"the snapshot's {name} are {table.dtype}{list(table.shape)}, not {wanted.dtype}{list(wanted.shape)}"
            )
    return AgentState(snapshot.episode, duals, counts, sums, visits)
