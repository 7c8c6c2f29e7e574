"""The benchmark of scrapes: its figures and its arithmetic. What it measures is judged by running it, not here."""

from collections.abc import Callable

import pytest

from safe_psrl_experiments.bench import scrape
from safe_psrl_experiments.bench.measure import percentile
from tests.system.server_process import ServerProcess


@pytest.mark.slow
def test_bench_scrape_measures_scrapes_and_the_calls_beside_them(
    new_server: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TURN_SECONDS", 0.1)
    server, said = new_server(metrics=True), list[str]()
    server.start()
    url = f"http://{server.metrics}/metrics"
    results = scrape.bench_scrape(server.target, url, 2, lambda what, *_: said.append(what), agents=20)
    assert {result.name: result.bar for result in results} == {
        "scrape of 20 agents, changed": "<= 1",
        "scrape of 20 agents, unchanged": "<= 1",
        "Step beside scrapes, median": "<= 1.2",
        "Step beside scrapes, 99 %": None,
    }
    for result in results:
        assert result.value > 0
        assert result.unit == "ms"
        assert result.ratio == pytest.approx(result.value / result.limit)
    assert said[0] == "creating 20 agents"
    _, text = server.http("/metrics")
    assert "safe_psrl_agents 20.0" in text


def test_the_ninety_ninth_percentile() -> None:
    assert percentile([float(number) for number in range(100, 0, -1)]) == 100
    assert percentile([float(number) for number in range(1000)]) == 990
