"""A real Prometheus on the product's configuration, scraping a real server at work; time is sped up, nothing else changed."""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from safe_psrl_client import Client, RemoteAgent
from safe_psrl_client.play import play_episode
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import scenario_named
from tests.deploy.dashboards import FILES, load, queries
from tests.deploy.prometheus_tools import RULES, Prometheus, Tools
from tests.system.server_process import wait_until

pytestmark = pytest.mark.slow

FAST_SERVICE: Final = 0  # the action that costs
HEALTHY, OVERSPENDING = "healthy", "overspending"
RISING: Final = "SafePsrlConstraintRegretRising"
OFTEN: Final = {"every_seconds": 2.0, "check_seconds": 0.2}  # so that there are snapshots to measure
PAUSE: Final = 0.02  # seconds between episodes: leaves the machine to the others
DEADLINE: Final = 120.0
FILLED: Final = {"$__rate_interval": "2s", "$agent": HEALTHY}  # four scrapes, as Grafana does it


def play_as_proposed(client: Client) -> Callable[[], None]:
    environment = scenario_named("streaming-buffer").environment()
    agent = RemoteAgent(client, HEALTHY)
    return lambda: void(play_episode(environment, agent))


def play_the_costly_action(client: Client) -> Callable[[], None]:
    """Whatever is proposed: ten times the fast service in every episode, where five are allowed."""
    environment = scenario_named("streaming-buffer").environment()

    def play() -> None:
        with client.episode(OVERSPENDING, environment.reset()) as episode:
            while not episode.done:
                seen = environment.step(FAST_SERVICE)
                episode.report(seen.next_state, seen.reward, seen.costs, action=FAST_SERVICE)

    return play


def void(_: object) -> None:
    """For its effect only."""


class Player:
    """Plays until told to stop, in a thread of its own; what fails there is raised at the end."""

    def __init__(self, play: Callable[[], None]) -> None:
        self._play = play
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(PAUSE):
                self._play()
        except BaseException as error:  # noqa: BLE001  # handed to the test
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


@pytest.fixture(scope="module")
def prometheus(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With two agents under way: one that does as the plan says, and one whose client overrides every action."""
    root = tmp_path_factory.mktemp("live")
    with ExitStack() as stack:
        settings = {"snapshots": OFTEN, "backups": {"directory": root / "backups"}}
        server = stack.enter_context(EmbeddedServer(store=f"sqlite:{root / 'store'}", metrics="127.0.0.1:0", **settings))
        client = stack.enter_context(Client(server.target))
        for seed, name in enumerate((HEALTHY, OVERSPENDING)):
            client.create_agent(name, "streaming-buffer", seed=seed)
        for play in (play_as_proposed, play_the_costly_action):
            stack.enter_context(Player(play(client)))
        (root / "prometheus").mkdir()
        yield stack.enter_context(Prometheus(tools, root / "prometheus", f"127.0.0.1:{server.metrics_port}"))


def test_the_target_is_up_and_scraped_without_error(prometheus: Prometheus) -> None:
    """Every line that the service writes is one that Prometheus reads."""

    def scraped() -> list[dict[str, Any]]:
        return [target for target in prometheus.ask("targets")["activeTargets"] if target["health"] == "up"]

    (target,) = wait_until(scraped, DEADLINE, "the target is up")
    assert target["lastError"] == ""
    assert target["labels"]["job"] == "safe-psrl"
    assert not prometheus.ask("targets")["droppedTargets"]


def test_every_rule_is_evaluated_without_error(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = wait_until(evaluated, DEADLINE, "all rules are evaluated")
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}
    assert len(rules) == len(re.findall(r"^ +- (alert|record): ", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_every_metric_that_is_asked_for_is_exported(prometheus: Prometheus) -> None:
    """An alert on a name that nobody exports would be silent for ever."""
    asked = [RULES.read_text(encoding="utf-8"), *(target["expr"] for path in FILES for _, target in queries(load(path)))]
    families = {
        re.sub(r"_(total|bucket|sum|count|info)$", "", name)
        for text in asked
        for name in re.findall(r"\b(?:safe_psrl|grpc_server)_\w+", text)
    }
    wait_until(lambda: prometheus.query('up{job="safe-psrl"} == 1'), DEADLINE, "there was a scrape")
    exported = {re.sub(r"_(total|info)$", "", name) for name in prometheus.ask("metadata")}
    assert len(families) > 40
    assert families - exported == set()


def test_an_agent_above_its_budget_raises_the_alarm_and_a_healthy_one_does_not(prometheus: Prometheus) -> None:
    """`for` and the windows pass thirty times as fast; the rule is the one that is shipped."""
    firing = f'ALERTS{{alertname="{RISING}", alertstate="firing"}}'
    alert = wait_until(lambda: prometheus.query(firing), DEADLINE, f"{RISING} fires")
    assert [series["metric"]["agent"] for series in alert] == [OVERSPENDING]
    shown = [found for found in prometheus.ask("alerts")["alerts"] if found["labels"]["alertname"] == RISING]
    (text,) = [found["annotations"]["summary"] for found in shown if found["state"] == "firing"]
    assert text == f"{OVERSPENDING}: fast-service is over its budget, and the excess grows"
    assert prometheus.number(f'safe_psrl_constraint_regret{{agent="{OVERSPENDING}"}}') > 0
    assert prometheus.number(f'safe_psrl:budget_used:ratio{{agent="{OVERSPENDING}"}}') == pytest.approx(2.0)
    assert prometheus.number(f'safe_psrl_constraint_regret{{agent="{HEALTHY}"}}') < 0
    assert prometheus.number(f'delta(safe_psrl_completed_episodes{{agent="{HEALTHY}"}}[20s])') > 0, "it is at work as well"
    assert prometheus.query(f'max_over_time(ALERTS{{agent="{HEALTHY}", alertstate="firing"}}[10m])') == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_of_every_panel_has_data(prometheus: Prometheus, path: Any) -> None:
    """Numbers, not only series: a quantile of nothing is no number."""
    waiting = {(title, filled(target["expr"])) for title, target in queries(load(path))}

    def all_answered() -> bool:
        waiting.difference_update([query for query in waiting if has_data(prometheus, query[1])])
        return not waiting

    try:
        wait_until(all_answered, DEADLINE, "every panel shows something")
    except AssertionError:
        pytest.fail(f"empty: {sorted(waiting)}")


def has_data(prometheus: Prometheus, expr: str) -> bool:
    now = time.time()
    found = prometheus.ask("query_range", query=expr, start=f"{now - 10}", end=f"{now}", step="1")["result"]
    return any(math.isfinite(float(value)) for series in found for _, value in series["values"])


def filled(expr: str) -> str:
    """As Grafana fills it in: in the fleet, all agents."""
    text = expr.replace('agent=~"$agent"', 'agent=~".*"')
    for variable, value in FILLED.items():
        text = text.replace(variable, value)
    return text
