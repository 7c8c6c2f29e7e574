"""`safe-psrl agent`: what people and scripts see, and exit codes."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from safe_psrl.problem.documents import spec_to_document, write_document
from safe_psrl.problem.options import METHODS, PESSIMISM_PRESETS
from safe_psrl.problem.presets import preset
from safe_psrl_cli.agent import app
from safe_psrl_client import Client, RemoteAgent, play
from safe_psrl_testbed import Scenario

Command = Callable[..., Result]
OTHER_METHOD = next(method for method in METHODS if method not in PESSIMISM_PRESETS)


def command(target: str, *arguments: str, code: int = 0, **more: str) -> Result:
    """A subcommand against the service at `target`."""
    result = CliRunner().invoke(app, [*arguments, "--target", target], **more)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def run(server: str) -> Command:
    return partial(command, server)


def test_an_agent_from_creation_to_deletion(run: Command, agent_name: str, tmp_path: Path) -> None:
    assert "created" in run("create", agent_name, "--preset", "factored-toy", "--seed", "3").stdout
    assert (
        "already exists, with the same definition"
        in run("create", agent_name, "--preset", "factored-toy", "--seed", "3").stdout
    )
    assert agent_name[:10] in run("list").stdout
    assert agent_name in [
        one["agent"] for one in json.loads(run("list", "--prefix", agent_name, "--sort", "changed", "--json").stdout)
    ]
    assert json.loads(run("list", "--prefix", agent_name, "--condition", "quarantined", "--json").stdout) == []
    assert json.loads(run("list", "--min-ratio", "1e6", "--limit", "3", "--json").stdout) == []
    assert run("list", "--condition", "quarantined").stdout == "no agents match these options\n"
    assert "active" in run("show", agent_name).stdout
    assert "paused" in run("pause", agent_name, "--reason", "lunch").stdout
    shown = run("show", agent_name).stdout
    assert "paused (lunch)" in shown
    assert "resumed" in run("resume", agent_name, "--reason", "lunch is over").stdout
    assert "resumed, after 0 episodes: lunch is over" in run("history", agent_name).stdout
    file = tmp_path / "a.agent"
    assert "wrote" in run("export", agent_name, str(file)).stdout
    copy = agent_name[:100] + "-copy"
    assert "imported" in run("import", copy, str(file)).stdout
    assert "as stored" in run("verify", copy).stdout
    assert "not deleted" in run("delete", copy, input="n\n", code=2).stderr
    assert "deleted" in run("delete", copy, "--yes").stdout
    assert "no agent" in run("show", copy, code=2).stderr


def test_json_is_stable_and_has_numbers_and_words(run: Command, agent_name: str) -> None:
    options = ("--set", "method=published", "--set", "pessimism_coefficient=theorem")
    run("create", agent_name, "--preset", "streaming-buffer", *options, "--json")
    first = run("show", agent_name, "--json", "--spec").stdout
    assert run("show", agent_name, "--json", "--spec").stdout == first
    document = json.loads(first)
    assert document["condition"] == "active"
    assert document["episode"] == 0
    assert document["constraints"][0]["cost_budget"] == 5.0
    assert document["spec"]["agent"]["options"]["pessimism_coefficient"] == 5.0
    assert list(document) == sorted(document)
    assert agent_name in [status["agent"] for status in json.loads(run("list", "--json").stdout)]
    assert json.loads(run("verify", agent_name, "--json").stdout)[0]["ok"] is True


def learn(client: Client, name: str, buffer: Scenario, episodes: int) -> None:
    play(buffer.environment(1), RemoteAgent(client, name, "local"), episodes)


def test_there_is_no_verdict_before_20_episodes(run: Command, client: Client, agent_name: str, buffer: Scenario) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    learn(client, agent_name, buffer, 19)
    assert "verdict         too early: 19 of 20 episodes completed" in run("show", agent_name).stdout
    assert json.loads(run("show", agent_name, "--json").stdout)["verdict"] == "unknown"
    learn(client, agent_name, buffer, 1)
    assert (
        "verdict         holds: the mean cost of the last 20 episodes is within their budget" in run("show", agent_name).stdout
    )
    assert json.loads(run("show", agent_name, "--json").stdout)["verdict"] == "within"


def test_an_agent_that_is_over_its_budget(run: Command, client: Client, agent_name: str) -> None:
    """The environment plays the costly action, whatever is proposed."""
    client.create_agent(agent_name, "streaming-buffer")
    for _ in range(20):
        with client.episode(agent_name, 0) as episode:
            while not episode.done:
                episode.report(0, action=0)
    shown = run("show", agent_name).stdout
    assert "  verdict       over budget: the mean cost of the last 20 episodes is above their budget" in shown
    assert "  recent cost   10, the mean of 20 episodes: 200.0% of their budget; 5 above it" in shown
    assert "  mean cost     10 over all episodes; 10 in the last" in shown
    assert "  over budget   20 of 20 episodes" in shown
    assert "  regret        100; never above 100" in shown
    predicted = client.get_agent(agent_name).status.constraints[0].predicted_cost
    (row,) = [line for line in run("list").stdout.splitlines() if "over budget" in line]
    assert " ".join(row.split()).partition("over budget ")[2].startswith(f"10 {predicted:.4g} 5 100.0 certified")


@pytest.mark.parametrize(("method", "has_dual"), [("published", True), ("theorem", True), (OTHER_METHOD, False)])
def test_only_what_the_method_has_is_shown(
    run: Command, client: Client, agent_name: str, buffer: Scenario, method: str, has_dual: bool
) -> None:
    client.create_agent(agent_name, "streaming-buffer", options={"method": method})
    assert "pessimism" not in run("show", agent_name).stdout  # no plan yet
    learn(client, agent_name, buffer, 1)
    shown = run("show", agent_name).stdout
    assert f"method          {method}" in shown
    assert "fallback        no: while the agent is paused, requests for actions fail" in shown
    assert ("dual variable" in shown) is ("pessimism" in shown) is has_dual
    assert ("certified" in shown) is not has_dual


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_specification_file_with_settings_of_the_agent(run: Command, agent_name: str, tmp_path: Path, kind: str) -> None:
    document = spec_to_document(preset("factored-toy"))
    fallback = [[0, 0, 0]] * 6
    options = {"method": "published", "cap_pessimism": True}
    settings = {"seed": 4, "max_open_episodes": 2, "fallback_policy": fallback, "options": options}
    document["agent"] = settings
    file = tmp_path / f"toy.{kind}"
    file.write_text(write_document(document, kind), encoding="utf-8")
    run("create", agent_name, "--spec", str(file), "--seed", "9", "--set", "max_kernel_draws=7")
    agent = json.loads(run("show", agent_name, "--json", "--spec").stdout)["spec"]["agent"]
    assert (agent["seed"], agent["max_open_episodes"], agent["fallback_policy"]) == (9, 2, fallback)
    given = {"cap_pessimism": True, "max_kernel_draws": 7}
    assert agent["options"] == {"method": "published", "pessimism_coefficient": 0.05, **given}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "x"), "give either --preset or --spec"),
        (("create", "x", "--preset", "no-such"), "streaming-buffer"),
        (("create", "bad name", "--preset", "inventory"), "letters"),
        (("create", "x", "--preset", "inventory", "--set", "pessimism_coeficient=1"), "did you mean pessimism_coefficient"),
        (("create", "x", "--preset", "inventory", "--set", "cap_pessimism"), "KEY=VALUE"),
        (("create", "x", "--spec", "nothing.txt"), ".toml or .json"),
        (("show", "nobody"), "nobody"),
        (("pause", "nobody"), "nobody"),
        (("verify", "nobody"), "nobody"),
        (("export", "nobody", "never"), "nobody"),
    ],
)
def test_a_users_mistake_has_exit_code_2(run: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in run(*arguments, code=2).stderr


def test_an_absent_service_is_one_line_and_code_3() -> None:
    shown = command("127.0.0.1:1", "list", code=3).stderr
    assert shown == "safe-psrl: no service at 127.0.0.1:1: start it with safe-psrl serve\n"
    assert "host:port" in command("nowhere", "list", code=2).stderr


def test_another_definition_under_the_same_name_names_what_differs(run: Command, agent_name: str) -> None:
    run("create", agent_name, "--preset", "factored-toy", "--seed", "3", "--set", "method=published")
    shown = run("create", agent_name, "--preset", "factored-toy", "--seed", "4", "--set", "method=theorem", code=2).stderr
    assert "spec.seed is 3, not 4" in shown
    assert "spec.options.method is published, not theorem" in shown
    assert "use another name, or delete it first" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    "settings",
    [
        ("method=published", "pessimism_coefficient=1e308"),
        ("method=published", "pessimism_coefficient=1e999"),
        (f"method={OTHER_METHOD}", "confidence=1e308"),
    ],
)
def test_options_that_lead_to_infinite_numbers_are_refused(run: Command, settings: tuple[str, ...]) -> None:
    options = [part for setting in settings for part in ("--set", setting)]
    shown = run("create", "x", "--preset", "inventory", *options, code=2).stderr
    assert f"spec.options.{settings[-1].partition('=')[0]}: must be" in shown


def test_the_largest_coefficient_leads_to_finite_numbers(
    run: Command, client: Client, agent_name: str, buffer: Scenario
) -> None:
    run("create", agent_name, "--preset", "streaming-buffer", "--set", "method=published", "--set", "pessimism_coefficient=1e9")
    learn(client, agent_name, buffer, 30)
    status = json.loads(run("show", agent_name, "--json").stdout)
    assert status["constraints"][0]["dual_variable"] > 1e9
    assert all(math.isfinite(value) for value in status["constraints"][0].values() if isinstance(value, float))


def test_a_damaged_export_is_refused(run: Command, agent_name: str, tmp_path: Path) -> None:
    run("create", agent_name, "--preset", "factored-toy")
    file = tmp_path / "a.agent"
    run("export", agent_name, str(file))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "damaged" in run("import", agent_name[:100] + "-copy", str(file), code=2).stderr
