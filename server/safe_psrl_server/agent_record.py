"""An agent as the fold of its events. Applying an event never fails, never samples and never plans: events are outcomes."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Policy
from safe_psrl.learner import AgentState, Plan, Transition, settle
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.conversion import Definition, definition_of, policy_from_message, unpack
from safe_psrl_server.observations import Observation, read, read_steps
from safe_psrl_server.policies import read_policy
from safe_psrl_server.totals import Totals

COMPLETED = events_pb2.EPISODE_END_COMPLETED
OPEN = events_pb2.EPISODE_END_UNSPECIFIED
OBSERVED = {"transition_observed", "trajectory_observed"}
SNAPSHOT_FORMAT = 1
SETTLE_AFTER = 5_000  # transitions that no plan needed yet, as when a history is read: settling copies the tables


@dataclass(eq=False)
class Episode:
    """An episode that is open, or was closed lately."""

    started: events_pb2.EpisodeStarted
    active_micros: int
    end: "events_pb2.EpisodeEnd.ValueType" = OPEN
    transitions: list[Transition] = field(default_factory=list)
    planned: Policy | None = None  # if it was made here, or was asked for
    number: int = field(init=False)
    is_apart: bool = field(init=False)  # its policy is stored beside the stream

    def __post_init__(self) -> None:
        self.number, self.is_apart = self.started.episode, bool(self.started.policy_digest)

    @property
    def policy(self) -> Policy:
        """[H, S]. Read when it is first asked for: a history is read without."""
        if self.planned is None:
            self.planned = policy_from_message(self.started.policy)
        return self.planned

    @property
    def lacks_policy(self) -> bool:
        """Whether it is stored apart and was not read yet."""
        return self.is_apart and not self.started.policy.actions

    def overrides(self, steps: Sequence[Transition]) -> int:
        """How many of `steps` have another action than proposed. Where the policy is stored apart it may be gone by now."""
        policy = self.started.policy
        actions, num_states = policy.actions, policy.num_states
        return sum([actions[step.step * num_states + step.state] != step.action for step in steps])

    @property
    def next_step(self) -> int:
        return len(self.transitions)

    @property
    def is_open(self) -> bool:
        return self.end == OPEN


class _Known(NamedTuple):
    """What was learned, and what came after and is entered when it is needed: a history is read without making each state."""

    learned: AgentState | None
    later: list[Transition]
    started: events_pb2.EpisodeStarted | None = None  # the latest, unless it is in `learned`
    duals: Floats | None = None  # that `started` leads to, if it was planned here


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
        self.totals = Totals.blank(0)
        self._definition: Definition | None = None
        self._known = _Known(None, [])  # replaced as a whole: snapshots settle it in a thread
        self._foreseen: Observation | None = None
        self._planned: tuple[events_pb2.Event, Plan] | None = None

    @property
    def definition(self) -> Definition:
        assert self._definition is not None  # noqa: S101  # callers have checked `exists`
        return self._definition

    @property
    def state(self) -> AgentState:
        learned, later, started, _ = self._known
        if later:
            return self._state_with(later)
        if learned is None or started is not None:
            learned = self._state_with(())
            self._known = _Known(learned, later)
        return learned

    def _state_with(self, later: Iterable[Transition]) -> AgentState:
        """What was learned up to the latest start, and `later`."""
        learned, _, started, duals = self._known
        assert learned is not None  # noqa: S101  # callers have checked `exists`
        episode = learned.episode if started is None else started.episode
        if duals is None:
            duals = learned.dual_variables if started is None else np.array(started.next_dual_variables[:], np.float64)
        return AgentState(episode, duals, learned.transition_counts, learned.signal_sums, learned.visits, tuple(later))

    @property
    def open_episodes(self) -> list[Episode]:
        return [episode for episode in self.episodes.values() if episode.is_open]

    @property
    def latest_episode(self) -> Episode | None:
        return next(reversed(self.episodes.values()), None)

    def apply(self, event: events_pb2.Event) -> None:
        """Fold one more event in."""
        kind = event.WhichOneof("kind")
        if kind in OBSERVED:
            self._observe(event)
        elif kind == "episode_started":
            self._start(event)
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
        self.paused, self.pause_reason = False, ""
        self.created_micros = created_micros
        self._definition = definition
        self._known = _Known(definition.learner.initial_state(), [])
        self.episodes = {}
        self.totals = Totals.blank(definition.spec.num_constraints)
        self.exists = True  # last: scrapes look on from another thread

    def restore(self, snapshot: events_pb2.Snapshot) -> None:
        """Become what `snapshot` was taken of, all but its version. Raises ValueError if that cannot be."""
        if snapshot.format != SNAPSHOT_FORMAT:
            raise ValueError(f"the snapshot has format {snapshot.format}; this version reads {SNAPSHOT_FORMAT}")
        if snapshot.deleted:
            return
        self.define(definition_of(snapshot.spec), snapshot.created_micros)
        self._known = _Known(_state_of(snapshot, self.state), [])
        self.totals = Totals.read(snapshot.totals)
        self.paused, self.pause_reason = snapshot.paused, snapshot.pause_reason
        for kept in snapshot.episodes:
            self.episodes[kept.started.episode] = Episode(kept.started, kept.active_micros, kept.end, read_steps(kept))

    def attach(self, policies: Mapping[int, bytes]) -> None:
        """Give episodes their policies that are stored apart. Raises ValueError if one is missing, or not what was stored."""
        for episode in self.episodes.values():
            if episode.lacks_policy:
                episode.started.policy.CopyFrom(read_policy(episode.started, policies.get(episode.number)))

    def forgotten_by(self, events: Sequence[events_pb2.Event]) -> list[int]:
        """The episodes whose policy is stored apart, and that nobody can ask about after `events`."""
        apart = [number for number, episode in self.episodes.items() if episode.is_apart]
        if not apart:
            return []
        ends = {number: episode.end for number, episode in self.episodes.items()}
        for event in events:
            kind = event.WhichOneof("kind")
            if kind == "episode_ended":
                ends[event.episode_ended.episode] = event.episode_ended.end
            elif kind == "episode_started":
                for number in self._beyond_memory(ends):
                    del ends[number]
            elif kind == "agent_deleted":
                ends.clear()
        return [number for number in apart if number not in ends]

    def foresee(self, observation: Observation) -> None:
        """Note what an event will say that may come next: it need not be read then."""
        self._foreseen = observation

    def foresee_start(self, start: events_pb2.Event, plan: Plan) -> None:
        """The same of an episode that may begin next."""
        self._planned = start, plan

    def state_after(self, trajectory: events_pb2.Event) -> AgentState:
        """What is learned once `trajectory`, which was foreseen, is applied to this record, too."""
        observation = self._foreseen
        if observation is None or observation.event is not trajectory:
            observation = self._foreseen = Observation(trajectory, *read(trajectory))
        return self._state_with([*self._known.later, *observation.steps])

    def note_settled(self, state: AgentState, trajectory: events_pb2.Event | None = None) -> None:
        """`state` is ours, settled, or what `state_after` gave for `trajectory`: it is not worked out again."""
        if trajectory is None:
            self._known = _Known(state, [])
        elif self._foreseen is not None and self._foreseen.event is trajectory:
            self._foreseen = Observation(*self._foreseen[:4], state)

    def settled_state(self) -> AgentState:
        """The state with every reported transition in its counts. Learning goes on from it to the same end."""
        state = settle(self.definition.spec, self.state)
        self._known = _Known(state, [])
        return state

    def digest(self) -> str:
        """Equal for equal learned states, whatever snapshots and restarts lay between."""
        state = self.settled_state()
        digest = hashlib.sha256(self.definition.message.SerializeToString(deterministic=True))
        digest.update(f"{state.episode} {self.paused}".encode())
        for table in (state.dual_variables, state.transition_counts, state.signal_sums, state.visits):
            digest.update(np.ascontiguousarray(table).tobytes())
        digest.update(self.totals.message().SerializeToString(deterministic=True))
        return digest.hexdigest()

    def _start(self, event: events_pb2.Event) -> None:
        started, planned, self._planned = event.episode_started, self._planned, None
        policy = duals = None
        if planned is not None and planned[0] is event:
            policy, duals = planned[1].policy, planned[1].next_dual_variables
        self._known = _Known(self._known.learned, self._known.later, started, duals)
        self.episodes[started.episode] = Episode(started, event.time_micros, planned=policy)
        for number in self._beyond_memory({number: episode.end for number, episode in self.episodes.items()}):
            del self.episodes[number]

    def _beyond_memory(self, ends: "Mapping[int, events_pb2.EpisodeEnd.ValueType]") -> list[int]:
        """Which episodes are forgotten when another one begins: as many closed ones are kept as may be open."""
        return [number for number, end in ends.items() if end != OPEN][: -self.definition.max_open_episodes]

    def _observe(self, event: events_pb2.Event) -> None:
        """Steps of one episode."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen.event is event:  # another one like it may have met another record
            _, number, steps, overridden, state = foreseen
            episode = self.episodes[number]
        else:
            number, steps, overridden = read(event)
            episode, state = self.episodes[number], None
            if not episode.is_apart:
                overridden = episode.overrides(steps)
        self.totals.transitions += len(steps)
        if overridden:
            self.totals.overridden_actions += overridden
        episode.transitions += steps
        episode.active_micros = event.time_micros
        if state is not None:
            self._known = _Known(state, [])
            return
        later = self._known.later
        later += steps
        if len(later) >= SETTLE_AFTER:
            self.settled_state()

    def _end(self, ended: events_pb2.EpisodeEnded) -> None:
        self.episodes[ended.episode].end = ended.end
        if ended.end == COMPLETED:
            self.totals.complete(ended.reward, ended.costs, self.definition.cost_budgets)


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
