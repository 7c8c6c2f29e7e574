"""The scripts of `examples` run as a user runs them, keep their constraints, and come near the best where it is known."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from safe_psrl_client import Client
from safe_psrl_server.embedded import EmbeddedServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / f"{script}.py", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def table(output: str) -> dict[str, list[str]]:
    """Rows by their first cell."""
    rows = re.findall(r"^\| (.+) \|$", output, flags=re.MULTILINE)
    return {first: rest for first, *rest in (row.split(" | ") for row in rows)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "episodes", "constraints", "share"),
    [("frozen_lake", 1200, 1, 0.3), ("unknown_signals", 1000, 1, 0.9), ("two_constraints", 100, 2, 0.85)],
)
def test_the_constraint_is_held_and_the_reward_comes_near_the_best(
    script: str, episodes: int, constraints: int, share: float
) -> None:
    output = run(script, "--episodes", str(episodes))
    rows = table(output)
    best = next(float(cells[0]) for first, cells in rows.items() if first.startswith("best within"))
    last = rows[f"{episodes * 3 // 4 + 1:,} to {episodes:,}"]
    assert share * best < float(last[0]) < 1.1 * best
    assert all(float(last[3 + 3 * i]) < 0 for i in range(constraints))
    assert f"({constraints} of {constraints})" in output


@pytest.mark.slow
def test_the_goal_beyond_a_cliff_of_unknown_cost_is_reached_within_the_budget() -> None:
    output = run("cliff_walking", "--episodes", "500")
    assert float(re.findall(r"greatest mean of falls in 100 episodes: (\S+) of 0.2", output)[0]) <= 0.2
    assert int(re.findall(r"goal reached in (\d+)% of the last 100", output)[0]) > 90


@pytest.mark.slow
@pytest.mark.parametrize(("script", "arguments"), [("cliff_walking", ["--unknown-everywhere"]), ("taxi", [])])
def test_unknown_costs_of_a_short_run_are_shown(script: str, arguments: list[str]) -> None:
    """Whether the budget is kept, and the goal reached, is measured in longer runs."""
    output = run(script, "--episodes", "8", *arguments)
    assert "7 to 8" in table(output)
    assert re.search(r"^greatest mean of \w+ in 100 episodes: \S+ of \S+$", output, flags=re.MULTILINE)
    assert re.search(r"^goal reached in \d+% of the last 100$", output, flags=re.MULTILINE)


@pytest.mark.slow
def test_a_mobile_network_keeps_to_its_connections_and_serves() -> None:
    rows = table(run("mobile_network", "--episodes", "24"))
    reward, _, budget, regret = (float(cell) for cell in rows["19 to 24"])
    assert regret < 0
    assert float(rows["connect all"][1]) > budget
    assert float(rows["connect none"][0]) < reward < float(rows["connect all"][0])


@pytest.mark.slow
def test_the_same_through_a_service_gives_the_same() -> None:
    with EmbeddedServer() as server, Client(server.target) as client:
        arguments = ("--episodes", "40", "--seed", "3")
        assert run("unknown_signals", *arguments, "--target", server.target) == run("unknown_signals", *arguments)
        assert client.get_agent("unknown_signals").status.episode == 40


@pytest.mark.slow
def test_a_cell_takes_over_from_a_rule_after_its_neighbours_start() -> None:
    output = run("neighbouring_cell")
    assert "the verdict: may be promoted" in output
    rewards = [float(reward) for reward in re.findall(r"reward (\S+),", output)]
    assert rewards[2] > rewards[0]
    assert float(re.findall(r"live: .* cost (\S+)", output)[0]) <= 5.2


@pytest.mark.slow
def test_the_tour_learns_within_the_budget_and_draws_its_figures(tmp_path: Path) -> None:
    """As a whole; it takes less than a minute."""
    command = [sys.executable, "-W", "error", EXAMPLES / "tour.py"]
    drawn = {**os.environ, "MPLBACKEND": "Agg"}
    ended = subprocess.run(command, cwd=tmp_path, env=drawn, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert float(re.findall(r"constraint regret (\S+):", ended.stdout)[0]) < 0
    assert int(re.findall(r"that is (\d+)% of the optimum", ended.stdout)[0]) > 90
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tour-learning.png", "tour-policy.png"]


def test_the_tour_has_cells() -> None:
    text = (EXAMPLES / "tour.py").read_text(encoding="utf-8")
    assert len(re.findall(r"^# %%", text, flags=re.MULTILINE)) >= 8
