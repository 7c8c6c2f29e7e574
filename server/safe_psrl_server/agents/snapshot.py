"""A record as one message, and back: for shortening streams, and for export and import."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from safe_psrl.arrays import Mask
from safe_psrl.errors import TransitionError
from safe_psrl.learner import AgentState
from safe_psrl.transition import check_transition
from safe_psrl_proto.v1 import events_pb2, model_pb2
from safe_psrl_server.agents.decisions import MAX_REQUEST_ID
from safe_psrl_server.agents.definition_checks import MAX_EPOCH_STEPS
from safe_psrl_server.agents.episode import Episode, check_epoch, corrected
from safe_psrl_server.agents.events import Observation, strip, write_steps
from safe_psrl_server.agents.messages import pack
from safe_psrl_server.agents.record import SNAPSHOT_FORMAT, AgentRecord
from safe_psrl_server.agents.totals import PER_CONSTRAINT
from safe_psrl_server.agents.updates import refuse_fixed
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.store.interface import DamagedStreamError, StoredStream

MAX_TEXT: Final = 500  # characters
MAX_DETAILS: Final = 1_000  # lines
ROUNDING: Final = 1e-9
MOST: Final = 2**53  # of anything counted or summed: adding to it must not overflow


def snapshot_of(record: AgentRecord, *, with_policies: bool = False) -> events_pb2.Snapshot:
    """Everything `AgentRecord.restore` needs to build an equal record. Policies stored outside the stream are left out unless
    `with_policies`."""
    snapshot = events_pb2.Snapshot(format=SNAPSHOT_FORMAT, version=record.version, created_micros=record.created_micros)
    state = record.state
    snapshot.spec.CopyFrom(record.definition.message)
    snapshot.episode = state.episode
    snapshot.dual_variables.extend(state.dual_variables)
    for name, table in state.tables._asdict().items():
        getattr(snapshot, name).CopyFrom(pack(table))
    snapshot.totals.CopyFrom(record.totals.message())
    snapshot.paused, snapshot.pause_reason = record.paused, record.pause_reason
    snapshot.paused_by_guard = record.paused_by_guard
    snapshot.definition_version = record.definition_version
    snapshot.discounted_episode = record.discounted_episode
    snapshot.log.extend(record.log)
    num_constraints = record.definition.spec.num_constraints
    snapshot.series.CopyFrom(pack(record.series.table(num_constraints)))
    snapshot.series_stride = record.series.stride
    snapshot.recent_episodes.CopyFrom(pack(record.recent.table(num_constraints)))
    for episode in record.episodes.values():
        kept = snapshot.episodes.add(started=episode.started, end=episode.end, active_micros=episode.active_micros)
        if episode.definition is not record.definition:
            kept.spec.CopyFrom(episode.definition.message)
        if episode.transitions:
            write_steps(kept.transitions, Observation(episode.number, episode.transitions, 0))
        kept.corrections.extend(episode.corrections.values())
        kept.visits_before.extend(pair.before for pair in episode.pairs.values())
        if not with_policies:
            strip(kept.started)
    return snapshot


def restored(name: str, data: bytes) -> AgentRecord:
    """The record that was serialised into `data`, at its version. Raises ValueError."""
    snapshot = events_pb2.Snapshot.FromString(data)
    record = AgentRecord(name)
    record.restore(snapshot)
    record.version = snapshot.version
    return record


def check_record(record: AgentRecord) -> None:
    """Raise ValueError if an imported `record` is one that no sequence of events leads to.

    Events are applied without checks, so an impossible record would fail every later call.
    """
    if not record.exists:
        raise ValueError("the agent was deleted")
    spec, state, totals = record.definition.spec, record.state, record.totals
    counted = [
        record.definition_version,
        record.discounted_episode,
        state.episode,
        totals.completed_episodes,
        totals.transitions,
    ]
    counted += [totals.overridden_actions, totals.drift_detections, totals.shadow.completed_episodes]
    _require(all(0 <= number <= MOST for number in counted), "its counts are impossible")
    _require(bool(np.isfinite(state.dual_variables).all()), "a dual variable is not finite")
    _require(not (state.dual_variables < 0).any(), "a dual variable is negative")
    known = record.definition.initial_state()
    _check_tables(state, spec.support, totals.transitions, known)
    if record.definition_version == 1 and not totals.drift_detections and record.definition.learner.problem.keep == 1.0:
        counted_once = ["transition_counts"] + ["visits"] * bool(state.visits.size)  # nothing was ever forgotten
        for name in counted_once:
            expected = totals.transitions + float(getattr(known, name).sum())
            tolerance = ROUNDING * expected if record.definition.message.HasField("warm_start") else 0.0
            close = abs(float(getattr(state, name).sum()) - expected) <= tolerance
            _require(close, "its counts are not as many as its transitions")
    shadow = totals.shadow
    per_constraint = [
        *(getattr(totals, name) for name in PER_CONSTRAINT),
        shadow.costs,
        shadow.cost_squares,
        shadow.weighted_costs,
    ]
    sums_of_episodes = [totals.reward, totals.last_reward, shadow.reward, shadow.reward_squares]
    sums_of_episodes += [shadow.weight, shadow.weight_squares, shadow.weighted_reward]
    sums_of_episodes += [total for one in per_constraint for total in one]
    _require(bool((np.abs(sums_of_episodes) <= MOST).all()), "its totals are not finite, or impossible")
    _require(
        totals.completed_episodes + totals.shadow.completed_episodes <= state.episode,
        "it completed more episodes than it started",
    )
    for entries in per_constraint:
        _require(len(entries) == spec.num_constraints, "its totals must have one entry per constraint")
    _require(list(record.episodes) == sorted(record.episodes), "its episodes are out of order")
    _require(len(record.open_episodes) <= record.definition.max_open_episodes, "it has too many open episodes")
    for entry in record.log:
        texts = [entry.by, entry.reason, *entry.details]
        _require(
            all(len(text) <= MAX_TEXT for text in texts) and len(texts) + len(entry.rows) <= MAX_DETAILS, "its log is too long"
        )
    for episode in record.episodes.values():
        _require(1 <= episode.number <= state.episode, f"episode {episode.number} was never started")
        try:
            _check_episode(episode, record)
        except (TransitionError, ServiceError, ValueError) as error:
            raise ValueError(f"episode {episode.number}: {error}") from None


def _check_tables(state: AgentState, support: Mask, transitions: int, known: AgentState) -> None:
    """What is forgotten leaves less than was observed and `known` at the start; nothing adds more."""
    for name, table in state.tables._asdict().items():
        _require(bool(((table >= 0) & (table <= MOST)).all()), f"its {name.replace('_', ' ')} are impossible")
    for counts in (state.transition_counts, state.recent_counts):
        _require(not ((counts > 0) & ~support[..., : counts.shape[-1]]).any(), "its transition counts are outside the support")
    for name in ("transition_counts", "visits"):
        most = (transitions + float(getattr(known, name).sum())) * (1 + ROUNDING)
        _require(float(getattr(state, name).sum()) <= most, f"its {name.replace('_', ' ')} are more than its transitions")
    _require(bool((state.signal_sums <= state.visits * (1 + ROUNDING)).all()), "its signal sums are impossible")


def _check_episode(episode: Episode, record: AgentRecord) -> None:
    spec, started = episode.definition.spec, episode.started
    refuse_fixed(episode.definition, record.definition)
    if spec.is_continuing:
        check_epoch(episode)
    else:
        _check_policy(episode)
    for per_constraint in (
        started.pessimism,
        started.dual_scale,
        started.dual_variables,
        started.next_dual_variables,
        started.predicted_costs,
    ):
        _require(len(per_constraint) == spec.num_constraints, "its plan must have one entry per constraint")
        _require(bool(np.isfinite(per_constraint).all()), "its plan is not finite")
    for optional in (started.certified_costs, started.cost_budgets):
        _require(len(optional) in {0, spec.num_constraints}, "its plan must have one entry per constraint")
        _require(bool(np.isfinite(optional).all()), "its plan is not finite")
    _require(started.certificate in model_pb2.Certificate.values(), "its certificate is unknown")
    _require(
        bool(np.isfinite([started.predicted_reward, started.plan_seconds, started.drift_statistic]).all()),
        "its plan is not finite",
    )
    _require(all(scale > 0 for scale in started.dual_scale), "a dual scale is not positive")
    _require(episode.end in events_pb2.EpisodeEnd.values(), "its end is unknown")
    last = MAX_EPOCH_STEPS if spec.is_continuing else spec.horizon
    _require(not (episode.is_open and episode.next_step >= last), "it is open after its last step")
    _require(len(started.request_id.encode()) <= MAX_REQUEST_ID, "its request_id is too long")
    _require(len(started.planned_by) <= MAX_TEXT, "its planned_by is too long")
    states = [started.state] if spec.is_continuing else [*record.definition.first_states]
    for number, transition in enumerate(episode.transitions):
        _require(transition.step == number, f"step {number} is missing")
        _require(transition.state in states, f"step {number} does not begin where it may")
        states = [transition.next_state]
        costs = len(transition.costs)
        _require(costs == spec.num_constraints, f"step {transition.step} must have one cost per constraint")
        check_transition(spec, transition)
    for step, correction in episode.corrections.items():
        _require(correction.episode == episode.number and 0 <= step < episode.next_step, "it corrects a step that it has not")
        _require(len(correction.costs) in {0, spec.num_constraints}, "a correction must have one cost per constraint")
        check_transition(spec, corrected(episode.transitions[step], correction))


def _check_policy(episode: Episode) -> None:
    spec, given = episode.definition.spec, episode.started.policy
    size = given.horizon, given.num_states
    _require(size == (spec.horizon, spec.num_states), "its policy has the wrong size")  # below zero numpy would fill it in
    _require(len(given.actions) == spec.horizon * spec.num_states, "its policy has the wrong size")
    policy = episode.policy
    _require(bool(((policy >= 0) & (policy < spec.num_actions)).all()), "its policy has actions that do not exist")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def folded(name: str, stream: StoredStream) -> AgentRecord:
    """The record that a stored stream folds to. Raises `DamagedStreamError`."""
    if stream.version == 0:
        raise DamagedStreamError("nothing is stored under its name")
    try:
        record = restored(name, stream.snapshot) if stream.snapshot is not None else AgentRecord(name)
    except Exception as error:  # any failure is damage to this agent only
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error
    apply_all(record, map(events_pb2.Event.FromString, stream.events))  # one at a time: a stream may be long
    attach(record, stream.policies)
    try:
        for episode in record.episodes.values():
            _ = episode.policy  # converted here, in a thread
    except ValueError as error:
        raise DamagedStreamError(f"a policy has the wrong size: {error}") from error
    if record.version != stream.version:
        raise DamagedStreamError(f"it folds to version {record.version}, not {stream.version}")
    return record


def parsed(payloads: Sequence[bytes]) -> list[events_pb2.Event]:
    try:
        return [events_pb2.Event.FromString(payload) for payload in payloads]
    except Exception as error:  # protobuf raises a type of its own for every implementation
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error


def apply_all(record: AgentRecord, events: Iterable[events_pb2.Event]) -> None:
    try:
        for event in events:
            record.apply(event)
    except Exception as error:  # any failure is damage to this agent only
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error


def attach(record: AgentRecord, policies: Mapping[int, bytes]) -> None:
    """Give the episodes of `record` the policies stored outside its stream. Raises `DamagedStreamError`."""
    try:
        record.attach(policies)
    except Exception as error:  # any failure is damage to this agent only
        raise DamagedStreamError(str(error)) from error
