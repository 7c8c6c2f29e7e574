"""Pages of the HTTP endpoint, and scrapes as numbers."""

import http.client
from contextlib import closing
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_text

from safe_psrl_proto.v1 import control_pb2

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OPEN = "application/openmetrics-text; version=1.0.0"


def get(port: int | None, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response, response.read()


def page(port: int | None, path: str) -> tuple[int, str]:
    response, body = get(port, path)
    return response.status, body.decode()


def scrape(port: int | None) -> Samples:
    """Every sample, by its name and labels."""
    status, text = page(port, "/metrics")
    assert status == 200
    samples = [sample for family in parse_text(text) for sample in family.samples]
    by_key = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(by_key) == len(samples), "a series is there twice"
    return by_key


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"safe_psrl_{name}", tuple(sorted(labels.items()))]


def about_agents(samples: Samples) -> Samples:
    """All series with an agent's name but the one that changes while nothing happens."""
    return {
        key: number for key, number in samples.items() if "agent" in dict(key[1]) and key[0] != "safe_psrl_snapshot_age_seconds"
    }


def agents_in(samples: Samples) -> set[str]:
    return {labels["agent"] for labels in (dict(key[1]) for key in samples) if "agent" in labels}


def moved(**fields: Any) -> control_pb2.Transition:
    return control_pb2.Transition(state=0, action=1, next_state=0, reward=1.0, costs=[0.5, 0.25], **fields)
