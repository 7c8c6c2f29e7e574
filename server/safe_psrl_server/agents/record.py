"""An agent as the fold of its events. Applying an event never fails, samples or plans: events record outcomes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.learner import AgentState, Tables
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.definition import Definition, definition_of
from safe_psrl_server.agents.episode import OPEN, Episode, PairVisits, corrected
from safe_psrl_server.agents.events import read_policy, read_steps
from safe_psrl_server.agents.history import MOST_ENTRIES, RecentEpisodes, Series, log_entry, point_of
from safe_psrl_server.agents.messages import unpack
from safe_psrl_server.agents.totals import Totals

SNAPSHOT_FORMAT: Final = 1
PAUSED_BY_DRIFT: Final = "drift was detected"


class AgentRecord:
    """The state of one agent after `version` events. Only `apply` changes it."""

    definition: Definition  # set once the agent exists
    dual_variables: Floats
    _tables: Tables
    _visited: NDArray[np.bool_]  # [S, A]

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.exists = False
        self.paused = self.paused_by_guard = False
        self.pause_reason = ""
        self.created_micros = 0
        self.episode = 0  # episodes started
        self.episodes: dict[int, Episode] = {}  # by number, oldest first: the open ones and as many closed ones
        self.totals = Totals.blank(0)
        self.series, self.recent = Series(), RecentEpisodes()
        self.log = list[events_pb2.LogEntry]()  # oldest first
        self.definition_version = 0
        self.visited_pairs = 0  # (state, action) pairs
        self.discounted_episode = 0  # observations of episodes up to this one may count less than 1

    @property
    def state(self) -> AgentState:
        """The learned state. Its tables are views that change with the record."""
        return self.state_after(())

    def copied_state(self) -> AgentState:
        """A copy of the learned state, with copied tables."""
        return AgentState(self.episode, self.dual_variables, *self._tables.copy())

    def state_after(self, steps: Sequence[Transition]) -> AgentState:
        """The learned state after `steps` have been observed as well."""
        views = Tables(*[table.view() for table in self._tables])
        return AgentState(self.episode, self.dual_variables, *views, tuple(steps))

    @property
    def visited_ratio(self) -> float:
        """Share of the available (state, action) pairs that were visited."""
        return self.visited_pairs / self.definition.available_pairs

    @property
    def table_bytes(self) -> int:
        """The memory of the learned tables, in bytes."""
        return sum(table.nbytes for table in self._tables) + self._visited.nbytes

    @property
    def active_micros(self) -> int:
        """The time of the newest event in the agent's episodes; 0 before the first."""
        return max((episode.active_micros for episode in self.episodes.values()), default=0)

    @property
    def changed_micros(self) -> int:
        """The time of the agent's newest event."""
        return max(self.active_micros, self.created_micros, self.log[-1].time_micros if self.log else 0)

    @property
    def open_episodes(self) -> list[Episode]:
        return [episode for episode in self.episodes.values() if episode.is_open]

    @property
    def latest_episode(self) -> Episode | None:
        return next(reversed(self.episodes.values()), None)

    def apply(self, event: events_pb2.Event) -> None:  # noqa: C901, PLR0912  # one branch for each kind
        """Fold one more event in."""
        match event.WhichOneof("kind"):
            case "transitions_observed":
                self._observe(event)
            case "episode_started":
                self._start(event)
            case "episode_ended":
                self._end(event)
            case "signal_corrected":
                self._correct(event.signal_corrected)
            case "drift_detected":
                self._detect(event.drift_detected)
            case "agent_created":
                self._define(definition_of(event.agent_created.spec), event.time_micros)
            case "agent_updated":
                self._update(definition_of(event.agent_updated.spec))
            case "agent_paused":
                self._pause(event.agent_paused.reason, guard=event.agent_paused.guard)
            case "agent_resumed":
                self.paused, self.pause_reason, self.paused_by_guard = False, "", False
                self.totals.resume()
            case "agent_deleted":
                self.exists = False
                self.episodes.clear()
            case "agent_imported":
                self._import(event)
            case _:
                raise ValueError(f"event {self.version + 1} of {self.name} has an unknown kind")
        entry = log_entry(event, self.episode, self.definition.spec)
        if entry is not None:
            self.log = [*self.log[1 - MOST_ENTRIES :], entry]
        self.version += 1

    def _observe(self, event: events_pb2.Event) -> None:
        number, steps, overridden = read_steps(event.transitions_observed)
        episode, learner = self.episodes[number], self.definition.learner
        for step in steps:
            if episode.is_epoch:
                episode.pairs[step.state, step.action] = self.pair_visits(episode, step)
            learner.count(self._tables, step)
            if not self._visited[step.state, step.action]:
                self._visited[step.state, step.action] = True
                self.visited_pairs += int(self.definition.spec.available_actions[step.state, step.action])
        episode.transitions += steps
        episode.active_micros = event.time_micros
        self.totals.transitions += len(steps)
        self.totals.overridden_actions += overridden

    def pair_visits(self, epoch: Episode, step: Transition) -> PairVisits:
        """The visits of `step`'s pair, including `step`, which is the next one of `epoch`."""
        pair = step.state, step.action
        before, visits = epoch.pairs.get(pair) or (float(self._tables.transition_counts[(0, *pair)].sum()), 0)
        return PairVisits(before, visits + 1)

    def _correct(self, correction: events_pb2.SignalCorrected) -> None:
        episode, before = self.episodes[correction.episode], self.episodes[correction.episode].sums()
        step = episode.transitions[correction.step]
        self.definition.learner.replace_signals(self._tables, step, corrected(step, correction))
        episode.corrections[correction.step] = correction
        after = episode.sums()
        if episode.is_counted and episode.is_shadow:
            self.totals.shadow.replace(before, after, episode.weight)
        elif episode.is_counted:
            self.totals.replace(before, after, episode.cost_limits)
            self.recent.replace([before.reward, *before.costs], [after.reward, *after.costs])

    def _import(self, event: events_pb2.Event) -> None:
        self.restore(event.agent_imported.snapshot)
        self.created_micros = event.time_micros
        for kept in self.episodes.values():
            kept.started.incarnation = event.time_micros

    def _detect(self, detected: events_pb2.DriftDetected) -> None:
        if self.definition.learner.problem.forgets:
            self.discounted_episode = self.episode
        self.definition.learner.react(self._tables)
        self._find_visited()
        self.totals.drift_detections += 1
        if detected.paused:
            self._pause(PAUSED_BY_DRIFT, guard=True)

    def _pause(self, reason: str, *, guard: bool) -> None:
        self.paused, self.pause_reason, self.paused_by_guard = True, reason, guard

    def restore(self, snapshot: events_pb2.Snapshot) -> None:
        """Take over everything in `snapshot` but its version. Raises ValueError if it is malformed."""
        if snapshot.format != SNAPSHOT_FORMAT:
            raise ValueError(f"the snapshot has format {snapshot.format}; this release reads {SNAPSHOT_FORMAT}")
        self._define(definition_of(snapshot.spec), snapshot.created_micros)
        self._restore_tables(snapshot)
        self.episode = snapshot.episode
        self.totals = Totals.read(snapshot.totals, self.definition.spec.num_constraints)
        self.paused, self.pause_reason = snapshot.paused, snapshot.pause_reason
        self.paused_by_guard = snapshot.paused_by_guard
        self.definition_version = snapshot.definition_version or 1
        self.discounted_episode = snapshot.discounted_episode
        self.log = list(snapshot.log[-MOST_ENTRIES:])
        num_constraints = self.definition.spec.num_constraints
        if snapshot.HasField("series"):
            self.series = Series.read(unpack(snapshot.series), snapshot.series_stride, num_constraints)
            self.recent = RecentEpisodes.read(unpack(snapshot.recent_episodes), num_constraints)
        for kept in snapshot.episodes:
            steps = read_steps(kept.transitions).steps
            if steps and (kept.transitions.episode, kept.transitions.first_step) != (kept.started.episode, 0):
                raise ValueError(f"the steps of episode {kept.started.episode} are out of place")
            definition = definition_of(kept.spec) if kept.HasField("spec") else self.definition
            corrections = {one.step: one for one in kept.corrections}
            episode = Episode(kept.started, definition, kept.active_micros, kept.end, list(steps), corrections)
            episode.restore_pairs(kept.visits_before)
            self.episodes[kept.started.episode] = episode

    def attach(self, policies: Mapping[int, bytes]) -> None:
        """Give episodes the policies that are stored outside the stream. Raises ValueError if one is missing or changed."""
        for episode in self.episodes.values():
            if episode.lacks_policy:
                episode.started.policy.CopyFrom(read_policy(episode.started, policies.get(episode.number)))

    def obsolete_policies(self, events: Sequence[events_pb2.Event]) -> list[int]:
        """The episodes whose policy is stored outside the stream and cannot be requested after `events`."""
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
        """Become a new agent that has learned only its warm start."""
        self.paused, self.pause_reason, self.paused_by_guard = False, "", False
        self.created_micros = created_micros
        self.definition = definition
        first = definition.initial_state()
        self.episode, self.dual_variables = 0, first.dual_variables
        self._tables = first.tables.copy()
        self._find_visited()
        self.episodes = {}
        self.totals = Totals.blank(definition.spec.num_constraints)
        self.series, self.recent, self.log = Series(), RecentEpisodes(), []
        self.definition_version, self.discounted_episode = 1, 0
        self.exists = True  # last: metrics are collected in another thread

    def _restore_tables(self, snapshot: events_pb2.Snapshot) -> None:
        duals = np.array(snapshot.dual_variables, np.float64)
        if duals.shape != self.dual_variables.shape:
            raise ValueError(f"the snapshot has {len(duals)} dual variables, expected {len(self.dual_variables)}")
        self.dual_variables = duals
        stored = {field.name: packed for field, packed in snapshot.ListFields() if field.name in Tables._fields}
        shapes = {name: table.shape for name, table in self._tables._asdict().items()}
        self._tables = self._tables._replace(**{name: unpack(packed, shapes[name]) for name, packed in stored.items()})
        self._find_visited()

    def _start(self, event: events_pb2.Event) -> None:
        started = event.episode_started
        self.episode = started.episode
        self.dual_variables = np.array(started.next_dual_variables[:], np.float64)
        self.episodes[started.episode] = Episode(started, self.definition, event.time_micros)
        for number in self._expired({number: episode.end for number, episode in self.episodes.items()}):
            del self.episodes[number]

    def _expired(self, ends: "Mapping[int, events_pb2.EpisodeEnd.ValueType]") -> list[int]:
        """The episodes to drop when another one starts: as many closed episodes are kept as may be open."""
        return [number for number, end in ends.items() if end != OPEN][: -self.definition.max_open_episodes]

    def _end(self, event: events_pb2.Event) -> None:
        ended = event.episode_ended
        episode = self.episodes[ended.episode]
        episode.end = ended.end
        if episode.is_counted and episode.is_shadow:
            self.totals.shadow.complete(ended.reward, ended.costs, episode.weight)
        elif episode.is_counted:
            self.totals.complete(ended.reward, ended.costs, episode.cost_limits)
            if episode.is_epoch:
                self.totals.complete_epoch(episode.next_step)
            self.recent.add(ended.reward, ended.costs, episode.cost_limits, episode.weight)
            self.series.add(point_of(episode, event))

    def _update(self, definition: Definition) -> None:
        """Use another definition from the next episode on. What was learned stays; drift detection starts again."""
        blank = definition.learner.initial_state().tables
        if blank.recent_counts.shape != self._tables.recent_counts.shape:
            fresh = blank.copy()
            self._tables = self._tables._replace(recent_counts=fresh.recent_counts, drift_statistics=fresh.drift_statistics)
        if min(self.definition.learner.problem.keep, definition.learner.problem.keep) < 1.0:
            self.discounted_episode = self.episode
        self.definition = definition
        self.definition_version += 1
        self._count_visited()

    def _find_visited(self) -> None:
        self._visited = np.any(self._tables.transition_counts, axis=(0, -1))
        self._count_visited()

    def _count_visited(self) -> None:
        self.visited_pairs = int(np.count_nonzero(self._visited & self.definition.spec.available_actions))
