"""Totals as plain numbers, and as the message that snapshots and digests have of them."""

from hypothesis import given
from hypothesis import strategies as st

from safe_psrl_server.agents.totals import Totals

COSTS = st.lists(st.floats(0, 3), min_size=2, max_size=2)


@given(st.lists(st.tuples(st.floats(0, 10), COSTS), max_size=12), st.integers(0, 2**53), st.integers(0, 2**53))
def test_totals_are_the_same_after_being_a_message(
    episodes: list[tuple[float, list[float]]], transitions: int, overridden: int
) -> None:
    totals = Totals.blank(2)
    totals.transitions, totals.overridden_actions = transitions, overridden
    for reward, costs in episodes:
        totals.complete(reward, costs, [1.0, 2.0])
    message = totals.message()
    assert {field.name for field in message.DESCRIPTOR.fields} == set(Totals.__slots__)
    again = Totals.read(message, 2)
    assert again == totals
    again.complete(1.0, [0.0, 0.0], [1.0, 2.0])
    assert totals.message() == message  # nothing is shared


def test_an_episode_adds_what_it_cost_beyond_the_budget() -> None:
    """Exactly at the budget is no violation."""
    totals = Totals.blank(1)
    for cost in (3.0, 2.0, 0.5):
        totals.complete(1.5, [cost], [2.0])
    assert (totals.completed_episodes, totals.reward, totals.last_reward, totals.last_costs) == (3, 4.5, 1.5, [0.5])
    assert (totals.constraint_regret, totals.constraint_regret_max, totals.violations) == ([-0.5], [1.0], [1])
