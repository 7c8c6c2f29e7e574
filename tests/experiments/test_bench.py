"""The benchmarks' own arithmetic and files. What they measure is judged by running them, not here."""

import json
from pathlib import Path

import pytest

from safe_psrl_cli.main import main
from safe_psrl_experiments.bench.measure import interleaved, judged

FIELDS = {"name", "value", "unit", "limit", "limit_name", "ratio", "bar", "ok"}


@pytest.mark.parametrize(
    ("bench", "bars"),
    [
        (
            "learn",
            {
                "simulated episode, compiled": "<= 2.5",
                "simulated episode, plain numpy": ">= 8",
                "DOPE's program by HiGHS": ">= 100",
                "episode of DOPE, compiled": "<= 1",
                "OptCMDP's program by HiGHS": ">= 100",
                "episode of OptCMDP, compiled": "<= 1",
            },
        ),
        ("plan", {"plan S=500 A=4 H=50": "<= 1.5", "draw a kernel S=500 A=4 H=50": "<= 1.3"}),
    ],
)
def test_a_bench_prints_a_table_and_writes_its_results(
    bench: str, bars: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "bench.json"
    monkeypatch.setattr("sys.argv", ["safe-psrl", "bench", bench, "--rounds", "1", "--json", str(path)])
    with pytest.raises(SystemExit) as left:
        main()
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert all(set(result) == FIELDS for result in results)
    assert {result["name"]: result["bar"] for result in results if result["bar"]} == bars
    for result in results:
        assert result["ratio"] == pytest.approx(result["value"] / result["limit"])
        assert result["unit"] == "us"
        assert result["value"] > 0
    assert left.value.code == (0 if all(result["ok"] for result in results) else 1)
    shown = capsys.readouterr().out
    assert "ratio" in shown
    assert "met" in shown or "MISSED" in shown


def test_bench_plan_has_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from safe_psrl_experiments.bench import plan  # noqa: PLC0415

    monkeypatch.setattr(plan, "SIZES", ((10, 2), (20, 3)))
    names = [result.name for result in plan.bench_plan(1)]
    assert names == [
        "plan S=10 A=4 H=2",
        "draw a kernel S=10 A=4 H=2",
        "plan S=20 A=4 H=3",
        "draw a kernel S=20 A=4 H=3",
    ]


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
