"""Prometheus queries of counters and histograms."""

from typing import Final

from panels import Query

CHOSEN: Final = 'agent=~"$agent"'  # of a dashboard with a choice of agents


def quantile(share: float, histogram: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket[$__rate_interval])))"


def per_second(counter: str, by: str = "") -> str:
    return f"sum {by}(rate({counter}[$__rate_interval]))"


def mean(histogram: str) -> str:
    return f"sum(rate({histogram}_sum[$__rate_interval])) / sum(rate({histogram}_count[$__rate_interval]))"


def quantiles(histogram: str) -> list[Query]:
    return [Query(quantile(share, histogram), f"{share:.0%} of them") for share in (0.5, 0.9, 0.99)]
