"""The series over an agent's life and its latest episodes, against plain sums."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.history import MOST_POINTS, MOST_RECENT, RecentEpisodes, Series, history_of
from safe_psrl_server.agents.status import record_status, verdict_of
from tests.safe_psrl_server.specs import transition


def point(number: int, cost: float, certified: float = 0.5) -> list[float]:
    return [float(number), 1.0, number * 10.0, cost / 2, cost, number * 1.0, cost, 4.0, cost, certified, number * 2.0]


@given(st.integers(0, 5 * MOST_POINTS))
def test_a_series_keeps_sums_and_last_values(episodes: int) -> None:
    """At most 1,024 points, each of consecutive episodes, whose means give the sum of all."""
    series, costs = Series(), [math.sin(k) for k in range(1, episodes + 1)]
    for k, cost in enumerate(costs, start=1):
        series.add(point(k, cost))
    points = series.table(1)
    assert len(points) <= MOST_POINTS
    assert points[:, 1].sum() == episodes
    assert points[:, 1] @ points[:, 6] == pytest.approx(sum(costs), abs=1e-6)
    following = 1.0
    for row in points:
        assert row[0] == following
        following += row[1]
        assert row[5] == following - 1, "the last drift statistic"
        assert row[10] == 2 * (following - 1), "the last dual variable"
    again = Series.read(points, series.stride, 1)
    assert again.points == series.points


def test_a_point_with_an_episode_that_has_no_certificate_has_none() -> None:
    series = Series()
    for k in range(1, MOST_POINTS + 2):
        series.add(point(k, 1.0, math.nan if k == 2 else 0.5))
    assert math.isnan(series.points[0][9])
    assert series.points[1][9] == 0.5


@pytest.mark.parametrize("points", [np.zeros((1, 5)), np.full((1, 11), np.nan), np.zeros((MOST_POINTS + 1, 11)), np.zeros(11)])
def test_a_malformed_series_is_refused(points: np.ndarray) -> None:
    with pytest.raises(ValueError, match="series"):
        Series.read(points, 1, 1)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(1, 10)), min_size=1, max_size=250))
def test_recent_means_are_those_of_the_latest_episodes(episodes: list[tuple[float, float]]) -> None:
    recent = RecentEpisodes()
    for cost, budget in episodes:
        recent.add(cost / 2, [0.0, cost], [1.0, budget])
    kept = np.array(episodes[-MOST_RECENT:])
    found = recent.of(1)
    assert found.cost == pytest.approx(kept[:, 0].mean())
    assert found.budget == pytest.approx(kept[:, 1].mean())
    assert recent.reward == pytest.approx(kept[:, 0].mean() / 2)
    excess = kept[:, 0] - kept[:, 1]
    error = excess.std(ddof=1) / math.sqrt(len(excess)) if len(excess) > 1 else 0.0
    assert found.excess_error == pytest.approx(error, abs=1e-9)


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ([9.0] * 19, admin_pb2.BUDGET_VERDICT_UNSPECIFIED),
        ([3.9, 4.0] * 10, admin_pb2.BUDGET_VERDICT_WITHIN),
        ([4.0] * 20, admin_pb2.BUDGET_VERDICT_WITHIN),
        ([2.0, 6.1] * 10, admin_pb2.BUDGET_VERDICT_NEAR),
        ([6.38, 6.4] * 10, admin_pb2.BUDGET_VERDICT_ABOVE),
        ([0.0] * 900 + [6.38] * 100, admin_pb2.BUDGET_VERDICT_ABOVE),
    ],
)
def test_verdicts_are_about_the_latest_episodes(costs: list[float], verdict: Any) -> None:
    recent = RecentEpisodes()
    for cost in costs:
        recent.add(0.0, [cost], [4.0])
    assert verdict_of(recent.of(0), len(recent.episodes)) == verdict


async def test_history_and_status_of_an_agent(bench: Any) -> None:
    """Observed beside predicted, by episode; and the same after a restart from a snapshot."""
    await bench.create()
    for k in range(25):
        started = await bench.start()
        await bench.report_episode(started.episode, *[transition(reward=0.5, costs=[0.1 * (k % 2), 0.0])] * 3)
    history = history_of(bench.record().series, bench.record().log)
    assert [one.episode for one in history.points] == list(range(1, 26))
    assert history.points[1].constraints[0].cost == pytest.approx(0.3)
    assert history.points[1].constraints[0].cost_budget == 1.5
    assert history.points[1].constraints[0].HasField("certified_cost")
    assert history.points[1].reward == pytest.approx(1.5)
    assert len(history.entries) == 1
    status = record_status(bench.record())
    assert status.recent_episodes == 25
    assert status.constraints[0].recent_cost == pytest.approx(0.3 * 12 / 25)
    assert status.constraints[0].mean_cost == pytest.approx(0.3 * 12 / 25)
    assert status.constraints[0].verdict == admin_pb2.BUDGET_VERDICT_WITHIN
    await bench.snapshot()
    assert await bench.is_verified()
