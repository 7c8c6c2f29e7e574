"""Steps as they are stored and read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.agents.episode_events import observing
from safe_psrl_server.agents.events import Observation, read_steps, write_steps
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.reports import report_all
from safe_psrl_server.agents.snapshot import snapshot_of
from tests.safe_psrl_server.bench import begun
from tests.safe_psrl_server.specs import transition

small = some.integers(0, 2**31 - 1)


@some.composite
def paths(draw: some.DrawFn) -> list[Transition]:
    """Steps that begin where the previous ones led."""
    state, first, width = draw(small), draw(some.integers(0, 1000)), draw(some.integers(0, 3))
    steps = list[Transition]()
    for step in range(first, first + draw(some.integers(1, 12))):
        costs = tuple(draw(some.lists(some.floats(0, 1), min_size=width, max_size=width)))
        steps.append(Transition(step, state, draw(small), draw(small), draw(some.floats(0, 1)), costs))
        state = steps[-1].next_state
    return steps


@given(steps=paths(), episode=some.integers(1, 2**62), overridden=some.integers(0, 12))
def test_steps_are_read_as_they_were_written(steps: list[Transition], episode: int, overridden: int) -> None:
    message = events_pb2.TransitionsObserved()
    write_steps(message, Observation(episode, steps, overridden))
    found = read_steps(events_pb2.TransitionsObserved.FromString(message.SerializeToString()))
    assert found == Observation(episode, steps, overridden)


def test_actions_that_were_not_proposed_are_counted() -> None:
    """In the record that decides and in one that reads the stored events."""
    record, reader = begun(), begun()
    proposed = record.episodes[1].policy.tolist()
    path = [transition(0, proposed[0][0], 2), transition(2, (proposed[1][2] + 1) % 2, 1)]
    fresh = report_all(record, record.episodes[1], path, 0).fresh
    (event,) = observing(record, record.episodes[1], fresh, False, 2)
    record.apply(event)
    reader.apply(events_pb2.Event.FromString(event.SerializeToString()))
    assert [one.totals.overridden_actions for one in (record, reader)] == [1, 1]
    assert record.episodes[1].transitions == reader.episodes[1].transitions


@pytest.mark.parametrize(("field", "value"), [("first_step", 1), ("first_step", -1), ("episode", 2), ("episode", 0)])
def test_steps_that_are_out_of_place_are_refused(field: str, value: int) -> None:
    record = begun()
    (event,) = decisions.report(record, 1, 0, transition(0, 1, 2), 2).events
    record.apply(event)
    snapshot = snapshot_of(record)
    setattr(snapshot.episodes[0].transitions, field, value)
    with pytest.raises(ValueError, match="the steps of episode 1 are out of place"):
        AgentRecord("b").restore(snapshot)


@pytest.mark.parametrize("column", ["actions", "rewards", "costs"])
def test_columns_of_different_lengths_are_refused(column: str) -> None:
    record = begun()
    (event,) = decisions.report(record, 1, 0, transition(0, 1, 2), 2).events
    record.apply(event)
    snapshot = snapshot_of(record)
    getattr(snapshot.episodes[0].transitions, column).append(0)
    snapshot.episodes[0].transitions.next_states.append(0)
    snapshot.episodes[0].transitions.next_states.append(0)
    with pytest.raises(ValueError, match=r"shorter|longer|do not belong"):
        AgentRecord("b").restore(snapshot)
