"""Tables fit the terminal: names are folded and columns dropped, and no number is cut off."""

from pathlib import Path

import pytest

from safe_psrl_cli.agent_tables import show_agents
from safe_psrl_cli.tables import print_table, table_of
from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.security.identities import create_token
from safe_psrl_server.security.roles import Role
from tests.service_fixtures import Command


def agent(name: str, num_constraints: int) -> admin_pb2.AgentStatus:
    """With numbers as long as they can be."""
    constraint = admin_pb2.ConstraintStatus(
        name="a-constraint-with-a-long-name",
        cost_budget=1234.5678,
        recent_budget=1234.5678,
        recent_cost=0.001234567,
        constraint_regret=-123456789.25,
    )
    return admin_pb2.AgentStatus(
        agent=name,
        condition=admin_pb2.AGENT_CONDITION_PAUSED,
        method="certified",
        completed_episodes=123_456_789,
        recent_episodes=100,
        constraints=[constraint] * num_constraints,
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_wide_table_loses_columns_and_not_digits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = "site/" + "x" * 123
    show_agents([agent(name, 1), agent("b", 2)])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "0.001235" in shown
    folded = "".join(line[1 : line.index("  ", 1)] for line in shown.splitlines() if "x" in line[:12])
    assert folded == name
    assert "paused" in shown
    table, _, named = shown.partition("A terminal wider")
    assert ("certified" in table) is (width >= 80)
    assert ("episodes" in table) is (width == 200)
    assert ("episodes" in named) is (width < 200), "the columns that are left out are named"


@pytest.mark.parametrize(("width", "fallback"), [(80, []), (100, ["no"])])
def test_typical_agents_fit_80_columns_with_all_but_the_fallback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, fallback: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    fast = admin_pb2.ConstraintStatus(
        name="fast",
        cost_budget=5,
        recent_budget=5,
        recent_cost=5.026,
        predicted_cost=4.5,
        constraint_regret=-22.2,
        verdict=admin_pb2.BUDGET_VERDICT_NEAR,
    )
    episodes = {"episode": 300, "completed_episodes": 300, "recent_episodes": 100}
    buffer = admin_pb2.AgentStatus(agent="buffer", method="certified", constraints=[fast], **episodes)
    paused = admin_pb2.AgentStatus(agent="resting", condition=admin_pb2.AGENT_CONDITION_PAUSED, method="published")
    paused.constraints.add(name="fast", cost_budget=5)
    damaged = admin_pb2.AgentStatus(agent="damaged", condition=admin_pb2.AGENT_CONDITION_QUARANTINED)
    show_agents([buffer, paused, damaged])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["buffer", "near", "budget", "5.026", "4.5", "5", "-22.2", "certified", "300", *fallback] in rows
    assert ["resting", "too", "early", "-", "-", "5", "-", "published", "0", *fallback] in rows
    assert ["paused"] in rows
    assert ["damaged", "quarantined", "-", "0", *fallback] in rows


def test_the_budget_beside_a_cost_is_that_of_its_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    """After an update of the budget, the verdict is about episodes that were planned with the previous one."""
    constraint = admin_pb2.ConstraintStatus(
        name="fast", cost_budget=4, recent_budget=5, recent_cost=4.59, verdict=admin_pb2.BUDGET_VERDICT_WITHIN
    )
    show_agents([admin_pb2.AgentStatus(agent="a", recent_episodes=100, completed_episodes=100, constraints=[constraint])])
    assert ["a", "holds", "4.59", "-", "5"] in [line.split()[:5] for line in capsys.readouterr().out.splitlines()]


def test_a_short_name_is_kept_whole_while_columns_are_dropped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "55")  # room for two columns if the name were folded
    table = table_of(None, "algorithm", "one", "two", "three")
    table.add_row("optpess-primaldual", *["12,345.6 ± 1,234.5"] * 3)
    print_table(table)
    shown = capsys.readouterr().out
    assert "optpess-primaldual" in shown
    assert shown.count("12,345.6 ± 1,234.5") == 1
    assert "…" not in shown


def test_words_are_folded_in_the_list_of_tokens(safe_psrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "identities.toml"
    patterns = [f"site-{i}/a-rather-long-pattern-*" for i in range(4)]
    create_token(file, "an-operator-with-a-long-name", [Role.ACT, Role.READ, Role.ADMIN], patterns)
    shown = safe_psrl("token", "list", "--identities", str(file)).out
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    for column in ("created", "roles", "agents"):
        assert column in shown
