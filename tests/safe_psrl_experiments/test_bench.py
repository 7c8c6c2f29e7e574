"""The benchmarks' own arithmetic and files. What they measure is judged by running them, not here."""

import json
from pathlib import Path

import pytest
from tests.service_fixtures import Command

from safe_psrl_experiments.bench import plan
from safe_psrl_experiments.bench.figures import draw_growth
from safe_psrl_experiments.bench.measure import interleaved, judged, judged_times

FIELDS = {"name", "value", "unit", "limit", "limit_name", "ratio", "bar", "ok", "times", "limit_times"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bench", "bars"),
    [
        (
            "learn",
            {
                "simulated episode, compiled": "<= 5",
                "simulated episode, plain numpy": ">= 8",
                "settle a step, with drift detection": "<= 1.3",
                "DOPE's program by HiGHS": ">= 50",
                "episode of DOPE, compiled": "<= 1",
                "OptCMDP's program by HiGHS": ">= 50",
                "episode of OptCMDP, compiled": "<= 1",
            },
        ),
        (
            "plan",
            {
                "plan S=500 A=4 H=50": "<= 1.5",
                "draw a kernel S=500 A=4 H=50": "<= 2.5",
                "draw and plan S=10 A=4 H=50": "<= 2.5",
                "start an episode S=100 A=4 H=50, 8 next states": "<= 1",
                "memory to start an episode S=100 A=4 H=50, 8 next states": "<= 1",
            },
        ),
    ],
)
def test_a_bench_prints_a_table_and_writes_its_results(
    bench: str, bars: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe_psrl: Command
) -> None:
    monkeypatch.setattr(plan, "OVER_ALL", (10,))
    monkeypatch.setattr(plan, "LISTED", (100,))
    path = tmp_path / "new" / "bench.json"
    ended = safe_psrl("bench", bench, "--rounds", "1", "--json", str(path))
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert all(set(result) == FIELDS for result in results)
    assert {result["name"]: result["bar"] for result in results if result["bar"]} == bars
    for result in results:
        assert result["ratio"] == pytest.approx(result["value"] / result["limit"])
        assert result["unit"] == ("MB" if result["name"].startswith("memory") else "us")
        assert result["value"] > 0
    assert ended.code == (0 if all(result["ok"] for result in results) else 1)
    assert "ratio" in ended.out
    assert "met" in ended.out or "MISSED" in ended.out


def test_bench_plan_has_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "PARTS", ((10, 2), (20, 3)))
    monkeypatch.setattr(plan, "OVER_ALL", (10, 1001))
    monkeypatch.setattr(plan, "LISTED", ())
    monkeypatch.setattr(plan, "NUM_ACTIONS", 1)
    monkeypatch.setattr(plan, "HORIZON", 2)
    results = plan.bench_plan(1)
    assert [result.name for result in results] == [
        "plan S=10 A=1 H=2",
        "draw a kernel S=10 A=1 H=2",
        "plan S=20 A=1 H=3",
        "draw a kernel S=20 A=1 H=3",
        "draw and plan S=10 A=1 H=2",
        "start an episode S=10 A=1 H=2",
        "start a certified episode S=10 A=1 H=2",
        "draw and plan S=1001 A=1 H=2",
        "start an episode S=1001 A=1 H=2",
    ]
    assert [result.bar for result in results[4:]] == ["<= 2.5", None, None, None, None]  # beyond 1,000 states there is none


def test_a_size_of_listed_next_states_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds and its memory; far less than a table over all next states of that many states would take."""
    monkeypatch.setattr(plan, "PARTS", ())
    monkeypatch.setattr(plan, "OVER_ALL", ())
    monkeypatch.setattr(plan, "LISTED", (10_000,))
    times, memory, certified = plan.bench_plan(2)
    assert len(times.times) == len(certified.times) == 2
    assert (certified.name, certified.bar) == ("start a certified episode S=10000 A=4 H=50, 8 next states", None)
    assert times.value == pytest.approx(sum(times.times) / 2)
    assert (times.unit, times.limit, memory.unit, memory.limit) == ("us", 1e6, "MB", 500.0)
    assert 50 < memory.value < 1_000


def test_growth_is_drawn(tmp_path: Path) -> None:
    """Every point that was measured, in a file of the kind that its name says; the axes are logarithmic."""
    results = [
        judged_times(f"{what} S={states} A=4 H=50", [states, 2.0 * states, 4.0 * states], [1.0 * states], "limit")
        for states in (10, 100, 2000)
        for what in (plan.BEGIN, plan.START, plan.START_CERTIFIED)
    ]
    results.append(judged_times("start an episode S=5000 A=4 H=50, 8 next states", [5.0], [1e6], "1 s"))
    results.append(judged_times("memory to start an episode S=5000 A=4 H=50, 8 next states", [5.0], [500.0], "500 MB", "MB"))
    assert draw_growth(tmp_path / "new" / "growth.png", results).read_bytes().startswith(b"\x89PNG")
    svg = draw_growth(tmp_path / "growth.svg", results).read_text(encoding="utf-8")
    assert "<svg" in svg
    assert svg.count("certified, the whole step") == 2
    assert len(svg) > 10_000


@pytest.mark.parametrize(
    ("value", "bar", "ok"),
    [(2.5, ("<=", 2.5), True), (2.6, ("<=", 2.5), False), (8.0, (">=", 8), True), (7.9, (">=", 8), False), (99.0, None, True)],
)
def test_a_ratio_is_judged_by_its_bar(value: float, bar: tuple[str, float] | None, ok: bool) -> None:
    result = judged("thing", value, 1.0, "limit", bar=bar)
    assert result.ok is ok
    assert result.ratio == value


def test_tasks_are_measured_in_turn_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    times = interleaved({"a": (lambda: order.append("a"), 1), "b": (lambda: order.append("b"), 10)}, rounds=2)
    assert order == ["a", "b"] * 3
    assert set(times) == {"a", "b"}
