"""A real Prometheus: finding or installing it, and running it on the product's own configuration with time sped up."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.system.debian import program
from tests.system.server_process import reserved_port, wait_until

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
CONFIG: Final = DEPLOY / "prometheus" / "prometheus.yml"
RULES: Final = DEPLOY / "prometheus" / "safe-psrl.rules.yml"
SERVICE: Final = "127.0.0.1:9464"
SPEED: Final = 30  # half an hour is a minute
MILLISECONDS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000}
DURATION: Final = r"(\d+)([smh])"
# What is shortened: the intervals of the configuration, how long an alert waits, and the windows of its expression.
SHORTENED: Final = re.compile(rf"(_interval: |for: |\[){DURATION}(?=\]|$)", flags=re.MULTILINE)


class Tools(NamedTuple):
    """Where the binaries are."""

    prometheus: str
    promtool: str


def find_tools() -> Tools:
    """Skips the test, with the reason, where there is no Prometheus and none can be installed."""
    return Tools(program("prometheus", "prometheus"), program("promtool", "prometheus"))


def sped_up(text: str) -> str:
    """The same rules or configuration, with every duration divided by SPEED and nothing else changed."""
    return SHORTENED.sub(lambda found: f"{found[1]}{int(found[2]) * MILLISECONDS[found[3]] // SPEED}ms", text)


class Prometheus:
    """Debian's Prometheus on the product's configuration, scraping `target` in place of the usual address."""

    def __init__(self, tools: Tools, directory: Path, target: str) -> None:
        config = CONFIG.read_text(encoding="utf-8")
        assert config.count(SERVICE) == 1
        (directory / CONFIG.name).write_text(sped_up(config.replace(SERVICE, target)), encoding="utf-8")
        (directory / RULES.name).write_text(sped_up(RULES.read_text(encoding="utf-8")), encoding="utf-8")
        self._address = f"127.0.0.1:{reserved_port()}"
        self._log = directory / "log"
        self._command = [
            tools.prometheus,
            f"--config.file={directory / CONFIG.name}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self._address}",
        ]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(self._is_ready, 60.0, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8")
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """What /api/v1/`path` answers; AssertionError if that is an error or has a warning."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query: `metric` and `value`."""
        found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return found

    def number(self, expr: str) -> float:
        """Of a query with exactly one series."""
        (series,) = self.query(expr)
        return float(series["value"][1])
