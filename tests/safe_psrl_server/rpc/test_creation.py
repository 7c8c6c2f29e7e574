"""CreateAgent over a socket: definitions, names and limits."""

import math
from typing import Any

import pytest

from safe_psrl_proto.v1 import admin_pb2, model_pb2
from tests.safe_psrl_server.specs import make_spec, set_fields
from tests.safe_psrl_server.wire import Code, Wire, refusal, serving


def create(wire: Wire, agent: str, **fields: Any) -> admin_pb2.CreateAgentResponse:
    return wire.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=agent, **fields))


@pytest.mark.parametrize("preset", ["streaming-buffer", "inventory", "factored-toy"])
def test_an_agent_by_preset(wire: Wire, preset: str) -> None:
    """With default options and seed 0, all of which the definition then says."""
    status = create(wire, f"by-{preset}", preset=preset).status
    assert (status.agent, status.condition, status.version, status.episode) == (
        f"by-{preset}",
        admin_pb2.AGENT_CONDITION_ACTIVE,
        1,
        0,
    )
    spec = wire.admin.GetAgent(admin_pb2.GetAgentRequest(agent=f"by-{preset}", with_spec=True)).spec
    assert (spec.options.method, spec.options.confidence, spec.seed) == ("certified", 0.98, 0)
    assert (spec.max_open_episodes, spec.episode_timeout_seconds) == (1, 3600.0)
    assert wire.start(f"by-{preset}", 0).episode == 1


def test_a_method_that_acts_late_is_reported(wire: Wire) -> None:
    """The theorem's pessimism exceeds the streaming buffer's budget for more than a thousand episodes."""
    options = model_pb2.SafePsrlOptions(method="theorem")
    [warning] = create(wire, "late", preset="streaming-buffer", options=options).warnings
    assert "the pessimism of the method theorem exceeds the budget for" in warning
    assert "certified" in warning
    assert not create(wire, "soon", preset="streaming-buffer").warnings


def test_a_budget_that_no_policy_is_known_to_keep_is_reported(wire: Wire) -> None:
    """Every action costs 1 a step."""
    spec = make_spec()
    del spec.cmdp.constraints[1:]
    costs = spec.cmdp.constraints[0].cost.values
    costs[:] = [1.0] * len(costs)
    [warning] = create(wire, "hopeless", spec=spec).warnings
    assert warning.startswith("no policy is known to keep the budgets")


def test_continuing_tasks(wire: Wire) -> None:
    """The preset has no horizon, and epochs of a length that can be read."""
    create(wire, "endless", preset="continuing-buffer")
    spec = wire.admin.GetAgent(admin_pb2.GetAgentRequest(agent="endless", with_spec=True)).spec
    assert (spec.cmdp.continuing, spec.cmdp.horizon, spec.max_epoch_steps) == (True, 0, 1000)


def test_options_and_seed_of_a_preset(wire: Wire) -> None:
    """They reach the algorithm: other pessimism, other samples."""
    published = model_pb2.SafePsrlOptions(method="published")
    options = model_pb2.SafePsrlOptions(method="published", pessimism_coefficient=5.0, cap_pessimism=True)
    create(wire, "o", preset="streaming-buffer", options=options, seed=7)
    create(wire, "p", preset="streaming-buffer", options=published, seed=7)
    create(wire, "q", preset="streaming-buffer", options=published, seed=2**63 - 1)
    replies = [wire.start(name, 0) for name in ("o", "p", "q")]
    assert replies[1].predicted_reward != replies[2].predicted_reward
    pessimism = [wire.status(name).constraints[0].pessimism for name in ("o", "p")]
    assert pessimism[0] == 2.0
    assert pessimism[0] != pessimism[1]


def test_creating_again_with_the_same_definition_is_no_change(wire: Wire) -> None:
    """Saying a default aloud is the same definition."""
    first = create(wire, "same", spec=make_spec())
    spoken = make_spec(max_open_episodes=1, options=model_pb2.SafePsrlOptions(confidence=0.98))
    again = create(wire, "same", spec=spoken)
    assert (first.existed, again.existed) == (False, True)
    assert again.status == first.status


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"seed": 1}, "spec.seed is 0, not 1"),
        ({"horizon": 4}, "spec.horizon is 3, not 4"),
        ({"max_open_episodes": 2}, "spec.max_open_episodes is 1, not 2"),
        ({"fallback": True}, "spec.fallback_policy has other entries"),
    ],
)
def test_creating_again_with_another_definition_is_refused(wire: Wire, other: dict[str, Any], difference: str) -> None:
    agent = wire.create()
    before = wire.status(agent)
    refused = refusal(lambda: create(wire, agent, spec=make_spec(**other)), Code.ALREADY_EXISTS, "AGENT_EXISTS")
    assert f"another definition: {difference}" in refused.message
    assert refused.message.endswith("; use another name, or delete it first")
    assert wire.status(agent) == before


BAD_NAMES = ("", " ", ".a", "-a", "/a", "a b", "a\n", "ä", "a" * 129, "a\0", "a,b")
PATHS = ("..", "../up", "/etc/passwd", "a/../../b\0", "C:\\a", "a\nb")


@pytest.mark.parametrize("name", [*BAD_NAMES, *PATHS])
def test_bad_names_are_refused(wire: Wire, name: str) -> None:
    """Names are labels of metrics and lines of logs: letters, digits and a few marks, 1 to 128 of them."""
    refused = refusal(lambda: create(wire, name, spec=make_spec()), Code.INVALID_ARGUMENT, field="agent")
    assert "must be 1 to 128 letters" in refused.message


@pytest.mark.parametrize("name", ["a" * 128, "0", "Site/7:rack_3.b-1"])
def test_good_names_are_accepted(wire: Wire, name: str) -> None:
    assert create(wire, name, spec=make_spec()).status.agent == name


def test_a_creation_needs_one_definition(wire: Wire) -> None:
    """Neither none, nor an unknown preset, nor a spec with options beside it."""
    refusal(lambda: create(wire, "x"), field="definition")
    refused = refusal(lambda: create(wire, "x", preset="streaming-bufer"))
    assert refused.fields == ["preset"]
    assert "did you mean streaming-buffer?" in refused.message
    refusal(lambda: create(wire, "x", preset=""), field="preset")
    refusal(lambda: create(wire, "x", spec=make_spec(), seed=1), field="options")
    refusal(lambda: create(wire, "x", spec=model_pb2.AgentSpec()), Code.INVALID_ARGUMENT)
    refusal(lambda: wire.status("x"), Code.NOT_FOUND)


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("cmdp.num_states", -1, "num_states"),
        ("cmdp.horizon", 0, "horizon"),
        ("cmdp.num_states", 2**62, "num_states"),
        ("cmdp.reward.values", [0.5], "reward"),
        ("cmdp.reward.shape", [2**40, 2**40], "reward"),
        ("cmdp.reward.shape", [-4, -3], "reward"),
        ("cmdp.reward.values", [math.nan] * 12, "reward[0][0]"),
        ("cmdp.reward.values", [1.5] * 12, "reward[0][0]"),
        ("cmdp.constraints.0.name", "", "constraints[0].name"),
        ("cmdp.constraints.0.cost_budget", math.inf, "constraints[0].cost_budget"),
        ("cmdp.constraints.1.satisfiable_cost", 9.0, "constraints[1].satisfiable_cost"),
        ("options.pessimism_coefficient", 1e308, "pessimism_coefficient"),
        ("options.pessimism_coefficient", -1.0, "pessimism_coefficient"),
        ("options.max_kernel_draws", 0, "max_kernel_draws"),
        ("seed", 2**63, "seed"),
        ("max_open_episodes", -1, "max_open_episodes"),
        ("max_open_episodes", 1001, "max_open_episodes"),
        ("episode_timeout_seconds", -1.0, "episode_timeout_seconds"),
        ("episode_timeout_seconds", math.nan, "episode_timeout_seconds"),
        ("fallback_policy.horizon", 3, "fallback_policy"),
    ],
)
def test_a_malformed_definition_is_refused(wire: Wire, path: str, value: object, name: str) -> None:
    """INVALID_ARGUMENT that names the field within the definition; nothing is created."""
    spec = make_spec()
    set_fields(spec, {path: value})
    (field,) = refusal(lambda: create(wire, "malformed", spec=spec), Code.INVALID_ARGUMENT).fields
    assert field.startswith("spec.")
    assert name in field
    refusal(lambda: wire.status("malformed"), Code.NOT_FOUND)


@pytest.mark.parametrize(
    ("notes", "field"),
    [
        ({f"n{i}": "" for i in range(101)}, "spec.environment"),
        ({"n" * 129: ""}, "spec.environment"),
        ({"quantiser": "x" * 501}, "spec.environment.quantiser"),
    ],
)
def test_notes_on_the_environment_are_bounded(wire: Wire, notes: dict[str, str], field: str) -> None:
    spec = make_spec()
    spec.environment.update(notes)
    refusal(lambda: create(wire, "noted", spec=spec), Code.INVALID_ARGUMENT, field=field)


@pytest.mark.parametrize(("action", "place"), [(2, 0), (3, 5), (-1, 11)])
def test_a_fallback_policy_plays_available_actions(wire: Wire, action: int, place: int) -> None:
    spec = make_spec(fallback=True)
    spec.fallback_policy.actions[place] = action
    assert refusal(lambda: create(wire, "x", spec=spec)).fields == [f"spec.fallback_policy.actions[{place}]"]


def test_limits_of_the_server() -> None:
    """Agents and table sizes are limited; deleting one makes room, and repeating a creation needs none."""
    with serving(limits={"max_agents": 2, "max_table_entries": 48}) as wire:
        wire.create(name="a")
        wire.create(name="b")
        refusal(lambda: create(wire, "c", spec=make_spec()), Code.RESOURCE_EXHAUSTED, "TOO_MANY_AGENTS")
        assert create(wire, "a", spec=make_spec()).existed
        wire.delete("a")
        refused = refusal(lambda: create(wire, "c", spec=make_spec(horizon=5)))
        assert refused.code == Code.INVALID_ARGUMENT
        assert "the server allows 48" in refused.message
        assert not create(wire, "c", spec=make_spec()).existed


def test_listed_next_states_count_as_what_is_kept_of_them() -> None:
    """Three of four next states listed: 36 entries in place of 48."""
    with serving(limits={"max_table_entries": 36}) as wire:
        refusal(lambda: create(wire, "all", spec=make_spec()), field="spec.num_states")
        assert not create(wire, "listed", spec=make_spec(listed=True)).existed
