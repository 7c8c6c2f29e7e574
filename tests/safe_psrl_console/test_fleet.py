"""The model behind the pages, without a browser: verdicts, headlines, changes."""

import pytest

from safe_psrl_console.budget_status import BudgetStatus, Level, budget_statuses, headline, worst_status
from safe_psrl_console.fleet import DRIFT_SHOWN_SECONDS, Fleet, WatchedAgent
from safe_psrl_console.fleet_page import row_of
from safe_psrl_proto.v1 import admin_pb2

QUARANTINED = admin_pb2.AGENT_CONDITION_QUARANTINED
UNSPECIFIED = admin_pb2.BUDGET_VERDICT_UNSPECIFIED
WITHIN = admin_pb2.BUDGET_VERDICT_WITHIN
NEAR = admin_pb2.BUDGET_VERDICT_NEAR
ABOVE = admin_pb2.BUDGET_VERDICT_ABOVE


def constraint(
    verdict: int = WITHIN, cost: float = 4.0, budget: float = 5.0, name: str = "energy"
) -> admin_pb2.ConstraintStatus:
    """All other costs and budgets differ from those of the recent episodes."""
    return admin_pb2.ConstraintStatus(
        name=name,
        verdict=verdict,
        recent_cost=cost,
        recent_budget=budget,
        cost_budget=budget + 1,
        mean_cost=cost - 1,
        predicted_cost=cost / 2,
    )


def status(agent: str, *constraints: admin_pb2.ConstraintStatus, completed: int = 100) -> admin_pb2.AgentStatus:
    return admin_pb2.AgentStatus(
        agent=agent,
        condition=admin_pb2.AGENT_CONDITION_ACTIVE,
        episode=completed,
        completed_episodes=completed,
        recent_episodes=min(completed, 100),
        recent_reward=0.5,
        constraints=constraints or [constraint()],
    )


def reply(*statuses: admin_pb2.AgentStatus, deleted: tuple[str, ...] = ()) -> admin_pb2.WatchAgentsResponse:
    return admin_pb2.WatchAgentsResponse(agents=statuses, deleted=deleted)


def fleet_of(*statuses: admin_pb2.AgentStatus) -> Fleet:
    """As the console first sees it."""
    fleet = Fleet()
    fleet.begin(reply(*statuses), 0.0)
    return fleet


@pytest.mark.parametrize(
    ("verdict", "level"),
    [(UNSPECIFIED, Level.UNKNOWN), (WITHIN, Level.WITHIN), (NEAR, Level.NEAR), (ABOVE, Level.OVER), (99, Level.UNKNOWN)],
)
def test_the_verdict_is_the_services(verdict: int, level: Level) -> None:
    """Whatever the costs are: they are not judged again. A verdict of a later version is no verdict."""
    (found,) = budget_statuses(status("a", constraint(verdict, cost=6.38, budget=4.0)))
    assert found.level is level


def test_cost_and_budget_are_those_of_the_recent_episodes() -> None:
    (found,) = budget_statuses(status("a", constraint(ABOVE, cost=6.38, budget=4.0)))
    assert (found.cost, found.budget, found.predicted_cost) == (6.38, 4.0, 3.19)
    assert found.margin == pytest.approx(-2.38)


def test_without_recent_episodes_the_budget_is_that_of_the_definition() -> None:
    (found,) = budget_statuses(status("a", constraint(UNSPECIFIED, 0.0, 0.0), completed=0))
    assert (found.budget, found.known) == (1.0, False)


def test_a_share_of_the_budget_is_not_capped() -> None:
    assert fleet_of(status("a", constraint(ABOVE, 75.0))).agents["a"].worst.share == pytest.approx(15)


def test_of_several_constraints_the_worst_verdict_counts_and_then_the_share() -> None:
    one = constraint(WITHIN, 4.9, 5.0)
    other = constraint(NEAR, 2.02, 2.0, name="wear")
    fleet = fleet_of(status("a", one, other))
    assert fleet.agents["a"].worst.constraint == "wear"
    assert fleet.headline().detail == "2.02 of 2 per episode: 0.02 (1.0%) above"
    over = [BudgetStatus("x", Level.OVER, 5.1, 5.0), BudgetStatus("y", Level.OVER, 5.2, 5.0)]
    judged = [BudgetStatus("w", Level.NEAR, 6.0, 5.0), *over, BudgetStatus("z", Level.UNKNOWN, 9.0, 5.0)]
    assert worst_status(judged).constraint == "y"
    assert worst_status([]).level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("verdicts", "title"),
    [
        ({}, "No agents yet"),
        ({"a": UNSPECIFIED}, "No agent has completed 20 episodes yet"),
        ({"a": WITHIN}, "Within budget"),
        ({"a": NEAR}, "1 of 1 agent is near budget, none is over"),
        ({"a": WITHIN, "b": WITHIN, "c": UNSPECIFIED}, "All 2 agents are within budget"),
        ({"a": NEAR, "b": WITHIN}, "1 of 2 agents is near budget, none is over"),
        ({"a": ABOVE, "b": NEAR}, "1 of 2 agents is over budget"),
        ({"a": ABOVE, "b": ABOVE}, "2 of 2 agents are over budget"),
    ],
)
def test_the_headline_states_whether_the_constraints_hold(verdicts: dict[str, int], title: str) -> None:
    judged = {name: budget_statuses(status(name, constraint(verdict)))[0] for name, verdict in verdicts.items()}
    found = headline(judged.items())
    assert found.title == title
    if any(verdicts.values()):
        assert found.worst == "a"
        assert ("No verdict: 1" in found.detail) is (UNSPECIFIED in verdicts.values())


def test_a_row_has_what_was_predicted_beside_what_was_observed() -> None:
    row = row_of(WatchedAgent(status("a"), 1), 0.0)
    assert (row["cost"], row["predicted"], row["budget"], row["share"], row["reward"]) == (4.0, 2.0, 5.0, 0.8, 0.5)
    new = row_of(WatchedAgent(status("a", constraint(UNSPECIFIED, 0.0, 0.0), completed=0), 1), 0.0)
    assert (new["predicted"], new["share"], new["reward"]) == (None, -1, None)


def test_drift_is_shown_for_a_day() -> None:
    one = status("a")
    assert not WatchedAgent(one, 1).has_drifted(0.0)
    one.drift_micros = 5_000_000
    assert WatchedAgent(one, 1).has_drifted(4.0 + DRIFT_SHOWN_SECONDS)
    assert not WatchedAgent(one, 1).has_drifted(6.0 + DRIFT_SHOWN_SECONDS)


def test_a_lost_connection_has_the_time_of_the_first_failure() -> None:
    fleet = Fleet()
    fleet.lose("no answer", 1.0)
    fleet.lose("no answer", 2.0)
    assert (fleet.connected, fleet.loaded, fleet.since) == (False, False, 1.0)
    fleet.begin(reply(status("a"), status("b")), 3.0)
    fleet.lose("gone", 4.0)
    fleet.lose("still gone", 5.0)
    assert (fleet.connected, fleet.loaded, fleet.since, fleet.failure) == (False, True, 4.0, "still gone")
    fleet.begin(reply(status("a")), 6.0)
    assert (fleet.connected, fleet.failure, list(fleet.agents)) == (True, "", ["a"])


def test_a_page_receives_only_changes() -> None:
    fleet = fleet_of(*(status(f"agent-{i}") for i in range(100)))
    seen = fleet.revision
    assert fleet.changed_since(seen) == []
    fleet.apply(reply(status("agent-7", completed=1), deleted=("agent-9",)))
    assert [agent.name for agent in fleet.changed_since(seen)] == ["agent-7"]
    assert fleet.deleted_since(seen) == ["agent-9"]
    assert len(fleet.changed_since(0)) == 99
    fleet.apply(reply(status("agent-9")))
    assert fleet.deleted_since(seen) == []


def test_a_quarantined_agent_can_be_listed() -> None:
    fleet = fleet_of(admin_pb2.AgentStatus(agent="broken", condition=QUARANTINED, condition_reason="damaged"))
    agent = fleet.agents["broken"]
    assert (agent.condition, agent.worst.level, row_of(agent, 0.0)["share"]) == ("quarantined", Level.UNKNOWN, -1)
