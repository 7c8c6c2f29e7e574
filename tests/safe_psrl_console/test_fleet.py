"""The model behind the pages, without a browser: histories, judgements, events."""

import random
from itertools import pairwise

import pytest

from safe_psrl_console.budget_status import BudgetStatus, Level, headline
from safe_psrl_console.fleet import RECENT_EPISODES, Fleet, WatchedAgent
from safe_psrl_console.history import History, Point, intervals
from safe_psrl_proto.v1 import admin_pb2

ACTIVE = admin_pb2.AGENT_CONDITION_ACTIVE
PAUSED = admin_pb2.AGENT_CONDITION_PAUSED
QUARANTINED = admin_pb2.AGENT_CONDITION_QUARANTINED


def status(
    agent: str, completed: int = 0, mean_cost: float = 0.0, *, budget: float = 5.0, condition: int = ACTIVE, reason: str = ""
) -> admin_pb2.AgentStatus:
    """Of an agent whose completed episodes cost `mean_cost` each and earned 1 each."""
    constraint = admin_pb2.ConstraintStatus(
        name="energy",
        cost_budget=budget,
        mean_cost=mean_cost,
        constraint_regret=completed * (mean_cost - budget),
        dual_variable=completed / 2,
    )
    return admin_pb2.AgentStatus(
        agent=agent,
        condition=condition,
        condition_reason=reason,
        episode=completed,
        completed_episodes=completed,
        cumulative_reward=completed,
        constraints=[constraint],
        version=completed,
        created_micros=1,
    )


def reply(*statuses: admin_pb2.AgentStatus, deleted: tuple[str, ...] = ()) -> admin_pb2.WatchAgentsResponse:
    return admin_pb2.WatchAgentsResponse(agents=statuses, deleted=deleted)


def point(completed: int, regret: float = 0.0) -> Point:
    return Point(completed, float(completed), (regret,), (0.0,), (0.0,), (0.0,))


def kinds(fleet: Fleet) -> list[str]:
    return [event.kind for event in fleet.events]


def fleet_of(*statuses: admin_pb2.AgentStatus) -> Fleet:
    """As the console first sees it."""
    fleet = Fleet()
    fleet.begin(reply(*statuses), 0.0)
    return fleet


def watched(costs: list[float], episodes: int = 10, budget: float = 5.0) -> WatchedAgent:
    """An agent whose every status reports `episodes` more, at that mean cost."""
    fleet, regret = fleet_of(status("a", budget=budget)), 0.0
    for i, cost in enumerate(costs, 1):
        regret += episodes * (cost - budget)
        fleet.apply(reply(status("a", i * episodes, budget + regret / (i * episodes), budget=budget)), float(i))
    return fleet.agents["a"]


def test_a_history_is_bounded_and_covers_everything_from_the_first_point() -> None:
    history = History(recent_points=50, whole_points=40)
    for i in range(10_000):
        history.add(point(i))
    assert [p.completed for p in history.recent] == list(range(9_950, 10_000))
    whole = [p.completed for p in history.whole()]
    assert len(whole) <= 41
    assert whole[0] == 0
    assert whole[-1] == 9_999
    assert all(second > first for first, second in pairwise(whole))


def test_a_status_without_a_new_episode_replaces_the_previous_one() -> None:
    history = History()
    for completed in (0, 1, 1, 1, 2):
        history.add(point(completed))
    assert [p.completed for p in history.recent] == [0, 1, 2]
    assert [p.completed for p in history.whole()] == [0, 1, 2]


def test_the_points_of_a_sparkline_stay_when_one_is_added() -> None:
    """Else the line would quiver from second to second."""
    history = History(recent_points=100)
    for i in range(300):
        history.add(point(i))
    before = {p.completed for p in history.thinned(20)[:-1]}
    history.add(point(300))
    assert len(before - {p.completed for p in history.thinned(20)}) <= 1


def test_the_cost_of_an_interval_comes_from_the_regret() -> None:
    """Budget + change of the regret / completed episodes; an interval without an episode has no cost."""
    points = [point(0), point(10, regret=-20.0), point(10, regret=-20.0), point(14, regret=-12.0)]
    found = list(intervals(points, [5.0]))
    assert [(one.episodes, one.costs[0]) for one in found] == [(10, pytest.approx(3.0)), (4, pytest.approx(7.0))]


def test_recent_means_the_last_hundred_episodes_or_all_if_fewer_were_watched() -> None:
    assert watched([4.0]).recent().costs[0] == pytest.approx(4.0)
    agent = watched([1.0] * 50 + [4.0] * (RECENT_EPISODES // 10))
    assert agent.recent().costs[0] == pytest.approx(4.0)
    fleet = fleet_of(status("old", 1_000_000, 4.5))  # the console began late: all that is known is the mean
    assert fleet.agents["old"].recent().costs[0] == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("cost", "level"), [(4.0, Level.WITHIN), (4.74, Level.WITHIN), (4.75, Level.NEAR), (5.0, Level.NEAR), (5.01, Level.OVER)]
)
def test_the_level_changes_before_the_budget_is_exceeded(cost: float, level: Level) -> None:
    assert watched([cost] * 20).worst()[1].level is level


def test_there_is_no_verdict_before_20_episodes() -> None:
    fleet = fleet_of(status("a", 19, 9.0))
    assert fleet.agents["a"].worst()[1].level is Level.UNKNOWN
    assert fleet.headline().title == "No agent has completed 20 episodes yet"
    fleet.apply(reply(status("a", 20, 9.0)), 1.0)
    assert fleet.agents["a"].worst()[1].level is Level.OVER


def test_a_share_of_the_budget_is_not_capped() -> None:
    assert fleet_of(status("a", 100, 75.0)).agents["a"].worst()[1].share == pytest.approx(15)


def test_noise_does_not_make_an_agent_over_budget() -> None:
    """The recent mean is above the budget, but by less than its parts scatter: the mean of all is what counts."""
    agent = watched([4.9] * 190 + [2.5, 8.0] * 6)
    _, budget_status = agent.worst()
    assert budget_status.recent_cost > 5
    assert budget_status.cost == budget_status.mean_cost
    assert budget_status.level is Level.NEAR


def test_a_drift_shows_while_the_overall_mean_is_far_below() -> None:
    draws = random.Random(1)
    agent = watched([2.0] * 150 + [8.0 + draws.uniform(-1, 1) for _ in range(12)])
    _, budget_status = agent.worst()
    assert budget_status.mean_cost < 3
    assert budget_status.level is Level.OVER


def test_of_several_constraints_the_worst_counts() -> None:
    one = status("a", 100, 4.0)
    one.constraints.append(admin_pb2.ConstraintStatus(name="wear", cost_budget=2, mean_cost=1.96, constraint_regret=-4.0))
    fleet = fleet_of(one)
    i, budget_status = fleet.agents["a"].worst()
    assert (i, budget_status.constraint) == (1, "wear")
    assert fleet.headline().detail == "1.96 of 2 per episode: 0.04 (2.0%) to spare"


def test_a_budget_of_zero_is_kept_by_nothing_but_zero() -> None:
    assert BudgetStatus("toll", 0.0, 0.0, 0.0).level is Level.WITHIN
    assert BudgetStatus("toll", 0.0, 0.1, 0.0).level is Level.OVER


@pytest.mark.parametrize(
    ("costs", "title"),
    [
        ({}, "No agents yet"),
        ({"a": None}, "No agent has completed 20 episodes yet"),
        ({"a": 4.0}, "Within budget"),
        ({"a": 4.9}, "Within budget, but close to it"),
        ({"a": 4.0, "b": 3.0, "c": None}, "All 2 agents are within budget"),
        ({"a": 4.9, "b": 3.0}, "All 2 agents are within budget, 1 close to it"),
        ({"a": 5.5, "b": 3.0}, "1 of 2 agents is over budget"),
        ({"a": 5.5, "b": 6.0}, "2 of 2 agents are over budget"),
    ],
)
def test_the_headline_states_whether_the_constraints_hold(costs: dict[str, float | None], title: str) -> None:
    def budget_status(cost: float | None) -> BudgetStatus:
        return BudgetStatus("energy", 5.0, cost or 0.0, cost or 0.0, known=cost is not None)

    told = headline((name, budget_status(cost)) for name, cost in costs.items())
    assert told.title == title
    if any(costs.values()):
        assert told.worst == max(costs, key=lambda name: costs[name] or 0.0)
        assert ("No verdict: 1" in told.detail) is (None in costs.values())


def test_events_are_changes_and_not_the_initial_state() -> None:
    fleet = fleet_of(status("a", 10, 4.0), status("b", 10, 4.0))
    assert kinds(fleet) == []
    fleet.apply(reply(status("a", 10, 4.0, condition=PAUSED, reason="maintenance")), 1.0)
    fleet.apply(reply(status("a", 10, 4.0)), 2.0)
    fleet.apply(reply(status("c"), deleted=("b",)), 3.0)
    fleet.apply(reply(status("c", condition=QUARANTINED, reason="damaged")), 4.0)
    assert kinds(fleet) == ["paused", "resumed", "deleted", "appeared", "quarantined"]
    assert [event.text for event in fleet.events_of("a")] == ["Resumed", "Paused: maintenance"]


def test_crossing_the_budget_is_one_event_in_each_direction() -> None:
    fleet = fleet_of(status("a", 10, 4.0))
    for i, mean in enumerate((5.2, 5.1, 4.99, 5.01, 4.9, 4.8), 2):
        fleet.apply(reply(status("a", 10 * i, mean)), float(i))
    assert kinds(fleet) == ["over", "within"]
    assert fleet.events[0].text == "Over budget: energy at 5.20 of 5"


def test_a_lost_connection_is_one_event_with_its_time() -> None:
    fleet = Fleet()
    fleet.lose("no answer", 1.0)
    fleet.lose("no answer", 2.0)
    assert (fleet.connected, fleet.loaded, fleet.since) == (False, False, 1.0)
    fleet.begin(reply(status("a"), status("b")), 3.0)
    fleet.lose("gone", 4.0)
    fleet.lose("still gone", 5.0)
    assert (fleet.connected, fleet.loaded, fleet.since, fleet.failure) == (False, True, 4.0, "still gone")
    fleet.begin(reply(status("a")), 6.0)
    assert kinds(fleet) == ["lost", "restored", "deleted"]
    assert list(fleet.agents) == ["a"]


def test_an_agent_that_is_created_again_begins_a_new_history() -> None:
    fleet = fleet_of(status("a", 500, 4.9))
    fleet.apply(reply(status("a", 3, 1.0)), 1.0)
    assert fleet.agents["a"].recent().costs[0] == pytest.approx(1.0)
    assert kinds(fleet) == ["appeared"]


def test_a_page_receives_only_changes() -> None:
    fleet = fleet_of(*(status(f"agent-{i}") for i in range(100)))
    seen = fleet.revision
    assert fleet.changed_since(seen) == []
    fleet.apply(reply(status("agent-7", 1, 1.0), deleted=("agent-9",)), 1.0)
    assert [agent.name for agent in fleet.changed_since(seen)] == ["agent-7"]
    assert fleet.deleted_since(seen) == ["agent-9"]
    assert len(fleet.changed_since(0)) == 99


def test_a_quarantined_agent_can_be_listed() -> None:
    fleet = fleet_of(admin_pb2.AgentStatus(agent="broken", condition=QUARANTINED, condition_reason="damaged"))
    agent = fleet.agents["broken"]
    assert (agent.condition, agent.worst()[1].level, agent.spark(0)) == ("quarantined", Level.UNKNOWN, [])
