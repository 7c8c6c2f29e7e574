"""The history that the charts, the list of entries and the banner show, without a browser."""

import numpy as np
import pytest

from safe_psrl_client import Client
from safe_psrl_console.agent_charts import MARKS
from safe_psrl_console.agent_history import KINDS, AgentHistory, Entry, entry_of, thinned
from safe_psrl_console.charts import Line, Mark, series_of
from safe_psrl_proto.v1 import admin_pb2, events_pb2
from tests.safe_psrl_cli.hostile_service import HARMFUL, RAW


def point(
    episode: int, cost: float, *, episodes: int = 1, budget: float = 5.0, certified: bool = True
) -> admin_pb2.HistoryPoint:
    constraint = admin_pb2.ConstraintPoint(cost=cost, cost_budget=budget, predicted_cost=cost / 2, dual_variable=cost)
    if certified:
        constraint.certified_cost = cost * 2
    numbers = {"reward": cost * 3, "predicted_reward": cost * 4, "drift_statistic": cost}
    return admin_pb2.HistoryPoint(episode=episode, episodes=episodes, constraints=[constraint], **numbers)


def test_thinning_keeps_sums_and_peaks() -> None:
    costs = np.random.default_rng(1).uniform(0, 10, 1_000)
    points = [point(i + 1, cost, budget=5.0 if i < 500 else 4.0) for i, cost in enumerate(costs)]
    thin = thinned(points, 128)
    assert len(thin) == 125
    assert sum(one.episodes for one in thin) == 1_000
    for name in ("cost", "cost_budget", "predicted_cost", "certified_cost"):
        total = sum(getattr(one.constraints[0], name) for one in points)
        assert sum(one.episodes * getattr(one.constraints[0], name) for one in thin) == pytest.approx(total)
    assert max(one.drift_statistic for one in thin) == costs.max()
    assert [one.episode for one in thin[:3]] == [1, 9, 17]
    assert thin[0].constraints[0].dual_variable == costs[7]


def test_means_are_weighted_by_episodes_and_certified_only_if_all_are() -> None:
    (found,) = thinned([point(1, 1.0, episodes=3), point(4, 5.0, certified=False)], 1)
    assert (found.constraints[0].cost, found.reward, found.episodes) == (2.0, 6.0, 4)
    assert not found.constraints[0].HasField("certified_cost")


def test_few_points_are_drawn_as_they_are() -> None:
    points = [point(i, float(i)) for i in range(1, 100)]
    assert thinned(points, 128) == points


def test_an_entry_has_who_what_when_and_why() -> None:
    logged = events_pb2.LogEntry(
        time_micros=1_000_000,
        kind=events_pb2.LOG_KIND_UPDATED,
        episode=7,
        by="ann",
        reason="night tariff",
        details=["a is 1, was 2"],
    )
    entry = entry_of(logged)
    assert entry.text == "1970-01-01 00:00:01 UTC: Updated by ann: night tariff; a is 1, was 2"
    assert entry_of(events_pb2.LogEntry(kind=events_pb2.LOG_KIND_DRIFT_DETECTED)).title == "Drift detected"


def test_an_entry_has_no_control_characters() -> None:
    entry = entry_of(events_pb2.LogEntry(by=RAW, reason=RAW, details=[RAW]))
    assert not HARMFUL & set(entry.text)


def test_the_rows_of_a_detection_are_known() -> None:
    rows = [events_pb2.RowStatistic(state=12, action=3, statistic=4e5), events_pb2.RowStatistic(state=0, action=1, statistic=2)]
    assert entry_of(events_pb2.LogEntry(kind=events_pb2.LOG_KIND_DRIFT_DETECTED, rows=rows)).rows == {(12, 3), (0, 1)}


def test_the_latest_detection_is_found_among_the_entries(client: Client) -> None:
    history = AgentHistory(client, "a")  # makes no call
    assert history.detection is None
    history.entries = [Entry("", kind, i, "", "", ()) for i, kind in enumerate(("created", "drift", "drift", "paused"))]
    assert history.detection == history.entries[2]


def test_all_that_is_done_to_an_agent_later_is_marked() -> None:
    """Pauses by its guard, too."""
    assert MARKS.keys() == set(KINDS.values()) - {"created"}


def test_the_text_of_a_mark_is_at_the_points_near_it_or_at_the_nearest() -> None:
    line = Line("cost", [(1, 1.0), (50, 1.0), (51, 1.0), (100, 1.0)], "red")
    marks = [Mark(50.4, "update", "blue"), Mark(70, "drift", "red")]
    series = series_of(line, marks, reach=1.0)
    assert [item.get("marks") for item in series["data"]] == [None, ["update"], ["update", "drift"], None]
    assert [one["xAxis"] for one in series["markLine"]["data"]] == [50.4, 70]
