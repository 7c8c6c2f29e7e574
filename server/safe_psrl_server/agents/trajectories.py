"""Whole trajectories of episodes, and parts of epochs, checked step by step. Pure, as `decisions` is."""

from collections.abc import Sequence
from typing import NamedTuple

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.agents.decisions import is_done
from safe_psrl_server.agents.definition import MAX_EPOCH_STEPS
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.validation import check_continuity, check_no_gap, check_repetition, checked_transition, closed
from safe_psrl_server.errors import InvalidArgumentError


class ReportedSteps(NamedTuple):
    """The part of a trajectory that is new, and whether the episode is complete with it."""

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
