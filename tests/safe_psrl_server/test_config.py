"""Where settings come from, which one wins, and how a wrong one is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_server.config import ConfigError, ServerConfig, load_config

FILE = """
listen = "file:1"
drain_seconds = 1.5
[limits]
max_agents = 11
planning_threads = 3
[[agents]]
name = "a"
preset = "inventory"
seed = 9
options = { pessimism_coefficient = 0.25 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_defaults_need_nothing() -> None:
    config = load_config(None, {}, {})
    assert config == ServerConfig()
    assert config.listen.startswith("127.0.0.1:")
    assert config.metrics.startswith("127.0.0.1:")
    assert config.store.startswith("sqlite:")


def test_each_source_outdoes_the_one_before(file: Path) -> None:
    """Defaults, then the file, then the environment, then flags; setting by setting."""
    environment = {"SAFE_PSRL_LISTEN": "environment:1", "SAFE_PSRL_LIMITS__MAX_AGENTS": "12"}
    assert load_config(None, {}, {}).limits.max_agents == 10_000
    by_file = load_config(file, {}, {})
    assert (by_file.listen, by_file.limits.max_agents, by_file.limits.planning_threads) == ("file:1", 11, 3)
    assert (by_file.drain_seconds, by_file.store) == (1.5, ServerConfig().store)
    by_environment = load_config(file, environment, {})
    assert (by_environment.listen, by_environment.limits.max_agents) == ("environment:1", 12)
    assert by_environment.limits.planning_threads == 3
    by_flag = load_config(file, environment, {"listen": "flag:1", "store": None})
    assert (by_flag.listen, by_flag.limits.max_agents, by_flag.store) == ("flag:1", 12, ServerConfig().store)


def test_declared_agents_are_read(file: Path) -> None:
    (agent,) = load_config(file, {}, {}).agents
    assert (agent.name, agent.preset, agent.seed, agent.options) == ("a", "inventory", 9, {"pessimism_coefficient": 0.25})


def test_the_environment_of_others_is_left_alone() -> None:
    """Only names that begin with the prefix and a setting are read."""
    environment = {"PATH": "/bin", "SAFE_PSRL_TARGET": "x", "SAFE_PSRL": "x", "LISTEN": "x", "SAFE_PSRL_": "x"}
    assert load_config(None, environment, {}) == ServerConfig()


def test_the_environment_may_open_a_section_twice() -> None:
    environment = {"SAFE_PSRL_SNAPSHOTS__EVERY_EVENTS": "5", "SAFE_PSRL_SNAPSHOTS__EVERY_SECONDS": "2.5"}
    snapshots = load_config(None, environment, {}).snapshots
    assert (snapshots.every_events, snapshots.every_seconds) == (5, 2.5)


@pytest.mark.parametrize(
    ("text", "environment", "flags", "place"),
    [
        ("listn = 'x'", {}, {}, "listn: there is no such setting (got 'x')"),
        ("limits = 3", {}, {}, "limits: "),
        ("[limits]\nmax_agents = 0", {}, {}, "limits.max_agents: "),
        ("[limits]\nmax_agents = 'many'", {}, {}, "limits.max_agents: "),
        ("[limits]\nmax_agent = 1", {}, {}, "limits.max_agent: there is no such setting"),
        ("log_format = 'xml'", {}, {}, "log_format: "),
        ("[[agents]]\nname = 'a'", {}, {}, "agents.0: "),
        ("[[agents]]\nname = 'a'\npreset = 'inventory'\nseed = -1", {}, {}, "agents.0.seed: "),
        ("", {"SAFE_PSRL_LIMITS__MAX_AGENTS": "1.5"}, {}, "limits.max_agents: "),
        ("", {"SAFE_PSRL_DRAIN_SECONDS": "-1"}, {}, "drain_seconds: "),
        ("", {"SAFE_PSRL_DRAIN_SECONDS": "nan"}, {}, "drain_seconds: "),
        ("", {"SAFE_PSRL_LIMITS": "5"}, {}, "limits: "),
        ("", {"SAFE_PSRL_LIMITS": "5", "SAFE_PSRL_LIMITS__MAX_AGENTS": "5"}, {}, "limits: "),
        ("listen = 'x'", {"SAFE_PSRL_LISTEN__PORT": "5"}, {}, "listen: "),
        ("", {}, {"log_format": "xml"}, "log_format: "),
        ("listen = ", {}, {}, "configuration file "),
        ("\x00", {}, {}, "configuration file "),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    tmp_path: Path, text: str, environment: dict[str, str], flags: dict[str, Any], place: str
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file, environment, flags)
    message = str(caught.value)
    assert message.startswith(place)
    assert "\n" not in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^configuration file .*none.toml: "):
        load_config(tmp_path / "none.toml", {}, {})


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "safe_psrl_cli.main", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_printed_configuration_loads_back_to_the_same(tmp_path: Path, file: Path) -> None:
    """`--print-config` prints TOML of everything in force, and starts nothing."""
    run = serve("--config", str(file), "--listen", "flag:1", "--print-config", SAFE_PSRL_LIMITS__MAX_AGENTS="12")
    assert (run.returncode, run.stderr) == (0, "")
    printed = tmp_path / "printed.toml"
    printed.write_text(run.stdout, encoding="utf-8")
    again = load_config(printed, {}, {})
    assert again == load_config(file, {"SAFE_PSRL_LIMITS__MAX_AGENTS": "12"}, {"listen": "flag:1"})
    assert again.listen == "flag:1"


def test_a_wrong_setting_ends_the_command(tmp_path: Path) -> None:
    """One line on standard error and exit code 2; no data directory is made."""
    run = serve("--store", f"sqlite:{tmp_path / 'data'}", SAFE_PSRL_DRAIN_SECONDS="soon")
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("safe-psrl: drain_seconds: ")
    assert run.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()
