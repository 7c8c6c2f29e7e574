"""Steps as they are stored, and read again: the same ones, whichever way they were written."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from safe_psrl.learner import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.agents.observations import read, read_steps, step_event, trajectory_event, write_steps
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import snapshot_of

Spec = Callable[..., model_pb2.AgentSpec]
See = Callable[..., control_pb2.Transition]
Begun = Callable[..., AgentRecord]
small = some.integers(0, 2**31 - 1)


@some.composite
def paths(draw: some.DrawFn) -> list[Transition]:
    """Steps that begin where the ones before led."""
    state, first, width = draw(small), draw(some.integers(0, 1000)), draw(some.integers(0, 3))
    steps = list[Transition]()
    for step in range(first, first + draw(some.integers(1, 12))):
        costs = tuple(draw(some.lists(some.floats(0, 1), min_size=width, max_size=width)))
        steps.append(Transition(step, state, draw(small), draw(small), draw(some.floats(0, 1)), costs))
        state = steps[-1].next_state
    return steps


def stored(event: events_pb2.Event) -> events_pb2.Event:
    return events_pb2.Event.FromString(event.SerializeToString())


@given(steps=paths(), episode=some.integers(1, 2**62), overridden=some.integers(0, 12))
def test_a_trajectory_is_read_as_it_was_written(steps: list[Transition], episode: int, overridden: int) -> None:
    event = stored(trajectory_event(7, episode, steps, overridden))
    number, found, others = read(event)
    assert (event.time_micros, number, list(found), others) == (7, episode, steps, overridden)


@given(steps=paths(), episode=some.integers(1, 2**62), overridden=some.booleans())
def test_a_step_is_read_as_it_was_written(steps: list[Transition], episode: int, overridden: bool) -> None:
    event = stored(step_event(7, episode, steps[0], overridden))
    number, found, others = read(event)
    assert (event.time_micros, number, list(found), others) == (7, episode, steps[:1], overridden)


@given(steps=paths(), episode=some.integers(1, 2**62))
def test_a_trajectory_of_an_older_store_is_read(steps: list[Transition], episode: int) -> None:
    """There each step was a message of its own."""
    singles = [step_event(7, episode, step, overridden=False).transition_observed for step in steps]
    singles[0].overridden = True
    number, found, others = read(stored(events_pb2.Event(trajectory_observed=events_pb2.TrajectoryObserved(steps=singles))))
    assert (number, list(found), others) == (episode, steps, 1)


@pytest.mark.parametrize("apart", [False, True])
def test_actions_that_were_not_the_proposed_ones_are_counted(begun: Begun, transition: See, apart: bool) -> None:
    """Here as they are decided on, and by whoever reads them; where the policy is stored apart, without it."""
    record, reader = begun(), begun()
    for one in (record, reader):
        one.episodes[1].is_apart = apart
    proposed = record.episodes[1].policy.tolist()
    path = [transition(0, proposed[0][0], 2), transition(2, (proposed[1][2] + 1) % 2, 1)]
    (event,), _, _ = decisions.report_all(record, 1, path, 2)
    (single,), _ = decisions.report(twin := begun(), 1, 0, transition(0, (proposed[0][0] + 1) % 2, 0), 2)
    if apart:
        reader.episodes[1].started.policy.ClearField("actions")
    record.apply(event)
    reader.apply(stored(event))
    twin.apply(stored(single))
    assert [one.totals.overridden_actions for one in (record, reader, twin)] == [1, 1, 1]
    assert record.episodes[1].transitions == reader.episodes[1].transitions


@given(steps=paths())
def test_the_steps_of_a_snapshot_are_those_that_were_kept(steps: list[Transition]) -> None:
    kept = events_pb2.EpisodeRecord(started=events_pb2.EpisodeStarted(episode=3))
    steps = [step._replace(step=number) for number, step in enumerate(steps)]
    write_steps(kept, steps)
    assert read_steps(events_pb2.EpisodeRecord.FromString(kept.SerializeToString())) == steps


@pytest.mark.parametrize(("field", "value"), [("step", 1), ("step", -1), ("episode", 2), ("episode", 0)])
def test_steps_that_are_out_of_place_are_refused(begun: Begun, transition: See, field: str, value: int) -> None:
    record = begun()
    (event,), _ = decisions.report(record, 1, 0, transition(0, 1, 2), 2)
    record.apply(event)
    snapshot = snapshot_of(record)
    setattr(snapshot.episodes[0].transitions[0], field, value)
    with pytest.raises(ValueError, match="step 0 of episode 1 is out of place"):
        AgentRecord("b").restore(snapshot)
