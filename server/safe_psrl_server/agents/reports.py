"""Reports of more than the next step: whole trajectories, parts of epochs, and corrections of steps that were reported before.

Every step is checked. Pure, like `decisions`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.decisions import Decision, is_done
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.definition_checks import MAX_EPOCH_STEPS
from safe_psrl_server.agents.episode import COMPLETED, Episode
from safe_psrl_server.agents.episode_events import guarding
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.validation import (
    check_continuity,
    check_incarnation,
    check_no_gap,
    check_repetition,
    check_signal,
    check_step,
    checked_transition,
    closed,
    find_episode,
)
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError


class ReportedSteps(NamedTuple):
    """The new part of a trajectory, and whether it completes the episode."""

    fresh: Sequence[Transition]
    duplicates: int
    done: bool
    last: Transition | None  # the last of the trajectory, reported before or not


def report_all(
    record: AgentRecord, episode: Episode, transitions: Sequence[control_pb2.Transition], first_step: int
) -> ReportedSteps:
    """A trajectory of `episode` from step 0 on, or a part of an epoch from `first_step` on, checked step by step."""
    _check_extent(record, episode, transitions, first_step)
    duplicates = min(episode.next_step - first_step, len(transitions))
    if len(transitions) > duplicates and not episode.is_open:
        raise closed(episode)
    previous = episode.transitions[first_step - 1] if first_step else None
    fresh, seen = list[Transition](), previous
    for i, transition in enumerate(transitions):
        field = f"transitions[{i}]"
        seen = checked_transition(episode.definition, first_step + i, transition, field)
        if i < duplicates:
            check_repetition(record, episode, seen, transition.terminal)
        else:
            if transition.terminal and i < len(transitions) - 1:
                raise InvalidArgumentError(f"{field}.terminal", "is set, but more transitions follow")
            check_continuity(record, episode, seen, previous, field)
            fresh.append(seen)
        previous = seen
    if not fresh:
        return ReportedSteps(fresh, duplicates, not episode.is_open, seen)
    return ReportedSteps(fresh, duplicates, is_done(record, episode, fresh, terminal=transitions[-1].terminal), seen)


def _check_extent(
    record: AgentRecord, episode: Episode, transitions: Sequence[control_pb2.Transition], first_step: int
) -> None:
    most = MAX_EPOCH_STEPS if episode.is_epoch else record.definition.spec.horizon  # max_epoch_steps may be lower meanwhile
    if not episode.is_epoch and first_step:
        raise InvalidArgumentError("first_step", "must be 0: only the steps of a continuing task are reported in parts")
    if not 0 <= first_step < most:
        raise InvalidArgumentError("first_step", f"must be from 0 to {most - 1}, got {first_step}")
    check_no_gap(episode, first_step)
    if episode.is_epoch and not transitions:
        raise InvalidArgumentError("transitions", "are missing")
    if first_step + len(transitions) > most:
        what = "the steps left in the epoch" if episode.is_epoch else "the horizon"
        raise InvalidArgumentError("transitions", f"must be at most {what}, {most - first_step}, got {len(transitions)}")


def correct(record: AgentRecord, request: control_pb2.CorrectSignalRequest, now_micros: int) -> Decision[bool]:
    """Decide a correction. The reply says whether the same correction was made before."""
    check_incarnation(record, request.incarnation)
    episode, step = find_episode(record, request.episode), request.step
    check_step(record, step)
    if step >= episode.next_step:
        message = f"step {step} of episode {episode.number} was not reported: report it instead"
        raise FailedPreconditionError(message, "STEP_NOT_REPORTED", expected_step=episode.next_step)
    correction = events_pb2.SignalCorrected(episode=episode.number, step=step, costs=request.costs)
    if request.HasField("reward"):
        correction.reward = request.reward
    _check_correction(episode.definition, episode.transitions[step], correction)
    known = episode.corrections.get(step)
    if known is not None and known != correction:
        message = f"step {step} of episode {episode.number} was corrected with other values"
        raise AlreadyExistsError(message, "CORRECTION_CONFLICT", episode=episode.number, step=step)
    if known is not None:
        return Decision([], True)
    if episode.number <= record.discounted_episode or record.definition.learner.problem.keep < 1.0:
        raise FailedPreconditionError(
            f"episode {episode.number} cannot be corrected: half_life_visits or forgetting after drift has reduced the "
            "weight of its steps since, and by how much is not stored",
            "OBSERVATION_DISCOUNTED",
        )
    event = events_pb2.Event(time_micros=now_micros, signal_corrected=correction)
    return Decision([event, *_guarding(record, episode, correction, now_micros)], False)


def _check_correction(definition: Definition, seen: Transition, correction: events_pb2.SignalCorrected) -> None:
    """Check that the values are possible and replace only learned signals."""
    spec = definition.spec
    learned = spec.learned[:, seen.step % spec.learned.shape[1], seen.state, seen.action].tolist()
    if not correction.HasField("reward") and not correction.costs:
        raise InvalidArgumentError("reward", "or costs must be given")
    where = f"in state {seen.state} with action {seen.action}: only what is learned can be corrected"
    if correction.HasField("reward"):
        check_signal("reward", correction.reward)
        if not learned[0]:
            raise InvalidArgumentError("reward", f"is known {where}", "SIGNAL_KNOWN")
    if correction.costs and len(correction.costs) != spec.num_constraints:
        wanted = f"must have {spec.num_constraints} entries, one per constraint"
        raise InvalidArgumentError("costs", f"{wanted}, got {len(correction.costs)}")
    for i, cost in enumerate(correction.costs):
        check_signal(f"costs[{i}]", cost)
        if not learned[1 + i] and cost != seen.costs[i]:
            raise InvalidArgumentError(f"costs[{i}]", f"is known {where}", "SIGNAL_KNOWN")
    if correction.costs and not any(learned[1:]):
        raise InvalidArgumentError("costs", f"are known {where}", "SIGNAL_KNOWN")


def _guarding(
    record: AgentRecord, episode: Episode, correction: events_pb2.SignalCorrected, now_micros: int
) -> list[events_pb2.Event]:
    if episode.end != COMPLETED:
        return []
    costs = episode.sums([*episode.corrections.values(), correction]).costs
    return guarding(record, episode, costs, episode.next_step, now_micros, replaced=episode.sums().costs)
