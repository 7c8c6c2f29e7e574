"""The control plane over a socket: the life of agents, and what an operator is told of them."""

import hashlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2
from safe_psrl_server.embedded import EmbeddedServer

Refuse = Callable[[Callable[[], object]], Any]
See = Callable[..., control_pb2.Transition]
Spec = Callable[..., model_pb2.AgentSpec]
Code = grpc.StatusCode
ACTIVE, PAUSED = admin_pb2.AGENT_CONDITION_ACTIVE, admin_pb2.AGENT_CONDITION_PAUSED


def create(wire: Any, agent: str, **fields: Any) -> admin_pb2.CreateAgentResponse:
    return wire.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=agent, **fields))


def counts_of(wire: Any, agent: str) -> tuple[np.ndarray, int]:
    reply = wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent=agent))
    packed = reply.transition_counts
    assert packed.dtype == "<i8"
    return np.frombuffer(zlib.decompress(packed.data), "<i8").reshape(packed.shape), reply.version


def play(wire: Any, agent: str, episodes: int) -> list[int]:
    """Whole episodes that stay in state 0; the actions that were proposed."""
    actions = []
    for _ in range(episodes):
        reply = wire.start(agent, 0)
        actions.append(reply.action)
        for _ in range(reply.horizon):
            step = wire.step(agent, control_pb2.Transition(state=0, action=1, next_state=0))
            actions.append(step.action)
    return actions


# --- creating, listing, deleting


@pytest.mark.parametrize("preset", ["streaming-buffer", "inventory", "factored-toy"])
def test_an_agent_by_preset(wire: Any, preset: str) -> None:
    """With default options and seed 0, all of which the definition then says."""
    status = create(wire, f"by-{preset}", preset=preset).status
    assert (status.agent, status.condition, status.version, status.episode) == (f"by-{preset}", ACTIVE, 1, 0)
    spec = wire.admin.GetAgent(admin_pb2.GetAgentRequest(agent=f"by-{preset}", with_spec=True)).spec
    assert (spec.options.pessimism_coefficient, spec.options.max_kernel_draws, spec.seed) == (0.05, 100, 0)
    assert spec.options.HasField("cap_pessimism")
    assert (spec.max_open_episodes, spec.episode_timeout_seconds) == (1, 3600.0)
    assert wire.start(f"by-{preset}", 0).episode == 1


def test_options_and_seed_of_a_preset(wire: Any) -> None:
    """They reach the algorithm: other pessimism, other samples."""
    options = model_pb2.SafePsrlOptions(pessimism_coefficient=5.0, cap_pessimism=True)
    create(wire, "o", preset="streaming-buffer", options=options, seed=7)
    create(wire, "p", preset="streaming-buffer", seed=7)
    create(wire, "q", preset="streaming-buffer", seed=2**63 - 1)
    replies = [wire.start(name, 0) for name in ("o", "p", "q")]
    assert replies[1].predicted_reward != replies[2].predicted_reward
    pessimism = [wire.status(name).constraints[0].pessimism for name in ("o", "p")]
    assert pessimism[0] == 2.0
    assert pessimism[0] != pessimism[1]


def test_creating_again_with_the_same_definition_is_no_change(wire: Any, make_spec: Spec) -> None:
    """Saying a default aloud is the same definition."""
    first = create(wire, "same", spec=make_spec())
    spoken = make_spec(max_open_episodes=1, options=model_pb2.SafePsrlOptions(max_kernel_draws=100))
    again = create(wire, "same", spec=spoken)
    assert (first.existed, again.existed) == (False, True)
    assert again.status == first.status


@pytest.mark.parametrize("other", [{"seed": 1}, {"horizon": 4}, {"max_open_episodes": 2}, {"fallback": True}])
def test_creating_again_with_another_definition_is_refused(
    wire: Any, make_spec: Spec, refusal: Refuse, other: dict[str, Any]
) -> None:
    """ALREADY_EXISTS, and the agent stays as it is."""
    agent = wire.create()
    before = wire.status(agent)
    refused = refusal(lambda: create(wire, agent, spec=make_spec(**other)))
    assert (refused.code, refused.reason) == (Code.ALREADY_EXISTS, "AGENT_EXISTS")
    assert wire.status(agent) == before


@pytest.mark.parametrize("name", ["", " ", ".a", "-a", "/a", "a b", "a\n", "ä", "a" * 129, "a\0", "a,b"])
def test_bad_names_are_refused(wire: Any, make_spec: Spec, refusal: Refuse, name: str) -> None:
    """Names are labels of metrics and lines of logs: letters, digits and a few marks, 1 to 128 of them."""
    refused = refusal(lambda: create(wire, name, spec=make_spec()))
    assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["agent"])


@pytest.mark.parametrize("name", ["a" * 128, "0", "Site/7:rack_3.b-1"])
def test_good_names_are_accepted(wire: Any, make_spec: Spec, name: str) -> None:
    """Up to 128, with all the marks that are allowed."""
    assert create(wire, name, spec=make_spec()).status.agent == name


def test_a_creation_needs_one_definition(wire: Any, make_spec: Spec, refusal: Refuse) -> None:
    """Neither none, nor an unknown preset, nor a spec with options beside it."""
    assert refusal(lambda: create(wire, "x")).fields == ["definition"]
    refused = refusal(lambda: create(wire, "x", preset="streaming-bufer"))
    assert refused.fields == ["preset"]
    assert "did you mean streaming-buffer?" in refused.message
    assert refusal(lambda: create(wire, "x", preset="")).fields == ["preset"]
    assert refusal(lambda: create(wire, "x", spec=make_spec(), seed=1)).fields == ["options"]
    assert refusal(lambda: create(wire, "x", spec=model_pb2.AgentSpec())).code == Code.INVALID_ARGUMENT
    assert refusal(lambda: wire.status("x")).code == Code.NOT_FOUND


def broken(make_spec: Spec, path: str, value: object) -> model_pb2.AgentSpec:
    """A good spec but for the field at `path`."""
    spec = make_spec()
    place: Any = spec
    *parents, last = path.split(".")
    for part in parents:
        place = place[int(part)] if part.isdecimal() else getattr(place, part)
    if isinstance(value, list):
        del getattr(place, last)[:]
        getattr(place, last).extend(value)
    else:
        setattr(place, last, value)
    return spec


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
def test_a_malformed_definition_is_refused(
    wire: Any, make_spec: Spec, refusal: Refuse, path: str, value: object, name: str
) -> None:
    """INVALID_ARGUMENT that names the field within the definition; nothing is created."""
    refused = refusal(lambda: create(wire, "malformed", spec=broken(make_spec, path, value)))
    assert refused.code == Code.INVALID_ARGUMENT
    (field,) = refused.fields
    assert field.startswith("spec.")
    assert name in field
    assert refusal(lambda: wire.status("malformed")).code == Code.NOT_FOUND


@pytest.mark.parametrize(("action", "place"), [(2, 0), (3, 5), (-1, 11)])
def test_a_fallback_policy_plays_available_actions(
    wire: Any, make_spec: Spec, refusal: Refuse, action: int, place: int
) -> None:
    """The entry that does not is named."""
    spec = make_spec(fallback=True)
    spec.fallback_policy.actions[place] = action
    assert refusal(lambda: create(wire, "x", spec=spec)).fields == [f"spec.fallback_policy.actions[{place}]"]


def test_limits_of_the_server(make_wire: Callable[..., Any], make_spec: Spec, refusal: Refuse) -> None:
    """Agents and table sizes are limited; deleting one makes room, and repeating a creation needs none."""
    with EmbeddedServer(limits={"max_agents": 2, "max_table_entries": 48}) as server, make_wire(server.target) as wire:
        wire.create(name="a")
        wire.create(name="b")
        refused = refusal(lambda: create(wire, "c", spec=make_spec()))
        assert (refused.code, refused.reason) == (Code.RESOURCE_EXHAUSTED, "TOO_MANY_AGENTS")
        assert create(wire, "a", spec=make_spec()).existed
        wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent="a"))
        refused = refusal(lambda: create(wire, "c", spec=make_spec(horizon=5)))
        assert refused.code == Code.INVALID_ARGUMENT
        assert "the server allows 48" in refused.message
        assert not create(wire, "c", spec=make_spec()).existed


def test_listed_next_states_count_as_what_is_kept_of_them(
    make_wire: Callable[..., Any], make_spec: Spec, refusal: Refuse
) -> None:
    """Three of four next states listed: 36 entries in place of 48."""
    with EmbeddedServer(limits={"max_table_entries": 36}) as server, make_wire(server.target) as wire:
        assert refusal(lambda: create(wire, "all", spec=make_spec())).fields == ["spec.num_states"]
        assert not create(wire, "listed", spec=make_spec(listed=True)).existed


def test_agents_come_in_pages(make_wire: Callable[..., Any], refusal: Refuse) -> None:
    """By name; the last page has no token; every agent exactly once."""
    with EmbeddedServer() as server, make_wire(server.target) as wire:
        names = sorted(wire.create(name=f"n{i}") for i in (3, 1, 4, 0, 5))
        for size in (1, 2, 5, 1000, 0):
            found, token = [], ""
            while True:
                page = wire.admin.ListAgents(admin_pb2.ListAgentsRequest(page_size=size, page_token=token))
                assert len(page.agents) <= (size or 100)
                found += [status.agent for status in page.agents]
                if not (token := page.next_page_token):
                    break
            assert found == names
        for size in (-1, 1001):
            refused = refusal(lambda size=size: wire.admin.ListAgents(admin_pb2.ListAgentsRequest(page_size=size)))
            assert refused.fields == ["page_size"]


def test_a_deleted_agent_is_gone_and_its_name_is_free(wire: Any, refusal: Refuse) -> None:
    """A new agent of that name knows nothing of the old one; the version goes on, so that nobody mistakes one for the other."""
    agent = wire.create()
    blank = wire.status(agent)
    play(wire, agent, 2)
    wire.start(agent)
    version = wire.status(agent).version
    wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent=agent))
    for call in (lambda: wire.status(agent), lambda: wire.act(agent, 0), lambda: wire.start(agent)):
        assert refusal(call).code == Code.NOT_FOUND
    assert refusal(lambda: wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent=agent))).code == Code.NOT_FOUND
    wire.create(name=agent)
    status = wire.status(agent)
    assert status.state_digest == blank.state_digest
    assert status.version == version + 2
    assert (status.episode, status.transitions, list(status.open_episodes)) == (0, 0, [])
    assert not counts_of(wire, agent)[0].any()
    assert wire.start(agent).episode == 1


# --- pausing


def pause(wire: Any, agent: str, reason: str = "") -> admin_pb2.AgentStatus:
    return wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent=agent, reason=reason)).status


def resume(wire: Any, agent: str) -> admin_pb2.AgentStatus:
    return wire.admin.ResumeAgent(admin_pb2.ResumeAgentRequest(agent=agent)).status


def test_pausing_and_resuming_can_be_repeated(wire: Any) -> None:
    """The second time changes nothing; the first reason stays."""
    agent = wire.create()
    status = pause(wire, agent, "maintenance")
    assert (status.condition, status.condition_reason) == (PAUSED, "maintenance")
    assert pause(wire, agent, "other") == status
    status = resume(wire, agent)
    assert (status.condition, status.condition_reason) == (ACTIVE, "")
    assert resume(wire, agent) == status


def test_a_paused_agent_without_fallback_refuses_to_act(wire: Any, refusal: Refuse, transition: See) -> None:
    """Nothing acts or begins; Step is refused before its transition is written; a plain report is taken in."""
    agent = wire.create()
    wire.start(agent)
    pause(wire, agent, "storm")
    before = wire.status(agent)
    for call in (
        lambda: wire.act(agent, 0),
        lambda: wire.act(agent, 0, episode=1, step=0),
        lambda: wire.step(agent, transition(0, 1, 0), episode=1, step=0),
        lambda: wire.start(agent, 0, abandon_open=True),
    ):
        refused = refusal(call)
        assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "AGENT_PAUSED")
        assert "storm" in refused.message
    assert wire.status(agent) == before
    assert not wire.report(agent, transition(0, 1, 0), episode=1, step=0).duplicate
    resume(wire, agent)
    assert wire.act(agent, 0).step == 1


def test_a_paused_agent_without_an_episode_begins_none(wire: Any, refusal: Refuse) -> None:
    """GetAction would begin one."""
    agent = wire.create()
    pause(wire, agent)
    assert refusal(lambda: wire.act(agent, 0)).reason == "AGENT_PAUSED"
    assert wire.status(agent).episode == 0


def test_the_fallback_policy_acts_while_paused(wire: Any, make_spec: Spec, refusal: Refuse, transition: See) -> None:
    """Inside the open episode and outside any; no new episode begins; afterwards the plan's own actions are back."""
    agent = wire.create(make_spec(fallback=True))
    policy = wire.start(agent, 0, with_policy=True).policy
    pause(wire, agent)
    acted = wire.act(agent, 0)
    assert (acted.action, acted.fallback, acted.episode, acted.step) == (1, True, 1, 0)
    reply = wire.step(agent, transition(0, 1, 3))
    assert (reply.action, reply.fallback) == (1, True)
    assert refusal(lambda: wire.start(agent, abandon_open=True)).reason == "AGENT_PAUSED"
    resume(wire, agent)
    acted = wire.act(agent, 3)
    assert (acted.action, acted.fallback) == (policy.actions[4 + 3], False)
    wire.end(agent, 1)
    pause(wire, agent)
    version = wire.status(agent).version
    for step in range(3):
        acted = wire.act(agent, 2, step=step)
        assert (acted.action, acted.fallback, acted.episode, acted.step) == (1, True, 0, step)
    assert wire.act(agent, 2).step == 0
    assert refusal(lambda: wire.act(agent, 2, step=3)).fields == ["step"]
    assert wire.status(agent).version == version


# --- looking


def test_the_policy_of_an_episode(wire: Any, refusal: Refuse) -> None:
    """Of the latest by default, of one that is open or was lately by its number."""
    agent = wire.create()

    def policy(episode: int = 0) -> admin_pb2.GetPolicyResponse:
        return wire.admin.GetPolicy(admin_pb2.GetPolicyRequest(agent=agent, episode=episode))

    refused = refusal(policy)
    assert (refused.code, refused.reason) == (Code.NOT_FOUND, "EPISODE_NOT_FOUND")
    first = wire.start(agent, 0, with_policy=True).policy
    assert (policy().episode, policy().policy) == (1, first)
    wire.end(agent, 1)
    second = wire.start(agent, 0, with_policy=True).policy
    assert (policy().episode, policy().policy) == (2, second)
    assert policy(1).policy == first
    assert refusal(lambda: policy(3)).code == Code.NOT_FOUND


def test_the_posterior_counts_what_was_reported(wire: Any, transition: See) -> None:
    """Every transition once, those of the open episode included."""
    agent = wire.create()
    expected = np.zeros((1, 4, 3, 4), np.int64)
    assert np.array_equal(counts_of(wire, agent)[0], expected)
    wire.start(agent)
    for state, action, next_state in ((0, 1, 2), (2, 0, 2), (2, 0, 2)):
        wire.step(agent, transition(state, action, next_state))
        expected[0, state, action, next_state] += 1
        counts, version = counts_of(wire, agent)
        assert np.array_equal(counts, expected)
        assert version == wire.status(agent).version


def test_a_status_is_made_of_what_was_reported(wire: Any, transition: See) -> None:
    """Sums, regrets and violations of two completed episodes, one below the budgets and one above the first."""
    agent = wire.create()
    for costs in ([0.25, 0.5], [1.0, 0.5]):
        wire.start(agent)
        wire.report_episode(agent, wire.status(agent).episode, *[transition(0, 1, 0, reward=0.5, costs=costs)] * 3)
    status = wire.status(agent)
    energy, wear = status.constraints
    assert (status.completed_episodes, status.transitions, status.episode) == (2, 6, 2)
    assert (status.cumulative_reward, status.last_reward) == (3.0, 1.5)
    assert (energy.name, energy.cost_budget, energy.last_cost, energy.violations) == ("energy", 1.5, 3.0, 1)
    assert (energy.constraint_regret, energy.constraint_regret_max) == (0.75, 0.75)
    assert (wear.last_cost, wear.violations, wear.constraint_regret_max) == (1.5, 0, 0.0)
    assert wear.constraint_regret == pytest.approx(3.0 - 2 * 2.4, abs=1e-12)
    assert status.visited_ratio == pytest.approx(1 / 11, abs=0)


def test_a_status_stays_the_same_while_nothing_happens(wire: Any, transition: See) -> None:
    """Looking changes nothing: the same durable state gives the same bytes, however often and by whichever call."""
    agent = wire.create()
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    first = wire.status(agent)
    counts_of(wire, agent)
    assert wire.status(agent) == first
    assert first.visited_ratio > 0
    listed = wire.admin.ListAgents(admin_pb2.ListAgentsRequest(page_size=1000)).agents
    without = admin_pb2.AgentStatus()
    without.CopyFrom(first)
    without.ClearField("state_digest")
    assert without in listed


def test_watching_tells_all_and_then_changes(make_wire: Callable[..., Any], refusal: Refuse) -> None:
    """The first reply has every agent that was asked for; later ones have those that changed, and those that are gone."""
    with EmbeddedServer(drain_seconds=1.0) as server, make_wire(server.target) as wire:
        for name in ("a", "b", "c"):
            wire.create(name=name)
        everything = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=0.1), timeout=30)
        one = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(agents=["b"], interval_seconds=0.1), timeout=30)
        assert [status.agent for status in next(everything).agents] == ["a", "b", "c"]
        assert [status.agent for status in next(one).agents] == ["b"]
        wire.start("a")
        reply = next(everything)
        assert [(status.agent, status.episode) for status in reply.agents] == [("a", 1)]
        assert not reply.deleted
        wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent="c"))
        reply = next(everything)
        assert (len(reply.agents), list(reply.deleted)) == (0, ["c"])
        wire.start("b")
        assert [(status.agent, status.episode) for status in next(one).agents] == [("b", 1)]
        for call in (everything, one):
            call.cancel()
        for interval in (-1.0, 0.01, 61.0, math.nan):
            request = admin_pb2.WatchAgentsRequest(interval_seconds=interval)
            assert refusal(lambda request=request: next(wire.admin.WatchAgents(request))).fields == ["interval_seconds"]


# --- moving


def exported(wire: Any, agent: str) -> tuple[bytes, bytes]:
    replies = list(wire.admin.ExportAgent(admin_pb2.ExportAgentRequest(agent=agent)))
    return b"".join(reply.chunk for reply in replies), replies[-1].digest


def imported(wire: Any, agent: str, data: bytes, digest: bytes, chunk: int = 100) -> admin_pb2.AgentStatus:
    def requests() -> Iterator[admin_pb2.ImportAgentRequest]:
        yield admin_pb2.ImportAgentRequest(agent=agent)
        for start in range(0, len(data), chunk):
            yield admin_pb2.ImportAgentRequest(chunk=data[start : start + chunk])
        yield admin_pb2.ImportAgentRequest(digest=digest)

    return wire.admin.ImportAgent(requests()).status


@pytest.mark.parametrize("kind", [{}, {"learned": True}, {"listed": True}])
def test_an_agent_travels(wire: Any, make_spec: Spec, transition: See, kind: dict[str, bool]) -> None:
    """Exported and imported: the same digest, the open episode goes on, and the same actions ever after."""
    agent = wire.create(make_spec(**kind))
    moved = transition(0, 1, 0, reward=0.25, costs=[0.5, 0.5])
    for _ in range(3):
        wire.report_episode(agent, wire.start(agent).episode, *[moved] * 3)
    wire.start(agent)
    wire.step(agent, moved)
    data, digest = exported(wire, agent)
    assert hashlib.sha256(data).digest() == digest
    twin = f"{agent}-twin"
    status = imported(wire, twin, data, digest)
    assert (status.state_digest, status.version) == (wire.status(agent).state_digest, 1)
    assert list(status.open_episodes) == [4]

    def go_on(name: str) -> list[Any]:
        replies: list[Any] = [wire.step(name, moved, episode=4, step=1), wire.step(name, moved, episode=4, step=2)]
        for _ in range(5):
            replies.append(wire.start(name, 0, with_policy=True))
            wire.report_episode(name, replies[-1].episode, *[moved] * 3)
        return replies

    assert go_on(agent) == go_on(twin)
    assert wire.status(agent).state_digest == wire.status(twin).state_digest


def test_a_damaged_import_is_refused(wire: Any, refusal: Refuse) -> None:
    """Changed, cut off, without its digest, or no export at all: nothing is created."""
    agent = wire.create()
    play(wire, agent, 1)
    data, digest = exported(wire, agent)
    changed = bytes([*data[:50], data[50] ^ 1, *data[51:]])
    for bad, told in ((changed, digest), (data[:-1], digest), (data, b""), (data, bytes(32)), (b"", digest)):
        refused = refusal(lambda bad=bad, told=told: imported(wire, "new", bad, told))
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["digest"])
    garbage = b"\xff" * 40
    assert refusal(lambda: imported(wire, "new", garbage, hashlib.sha256(garbage).digest())).fields == ["chunk"]
    assert refusal(lambda: wire.status("new")).code == Code.NOT_FOUND
    assert refusal(lambda: imported(wire, agent, data, digest)).reason == "AGENT_EXISTS"
    assert refusal(lambda: imported(wire, "bad name", data, digest)).fields == ["agent"]


def _deleted(snapshot: events_pb2.Snapshot) -> None:
    snapshot.deleted = True


def _newer(snapshot: events_pb2.Snapshot) -> None:
    snapshot.format = 99


def _zipped_badly(snapshot: events_pb2.Snapshot) -> None:
    snapshot.transition_counts.data = b"no zlib"


def _misshapen(snapshot: events_pb2.Snapshot) -> None:
    snapshot.transition_counts.shape[:] = [1, 2, 3, 8]


def _short_totals(snapshot: events_pb2.Snapshot) -> None:
    del snapshot.totals.last_costs[:]


def _two_duals(snapshot: events_pb2.Snapshot) -> None:
    snapshot.dual_variables.append(1.0)


def _short_policy(snapshot: events_pb2.Snapshot) -> None:
    del snapshot.episodes[0].started.policy.actions[4:]
    snapshot.episodes[0].started.policy.horizon = 1


def _wild_step(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episodes[0].transitions.next_states[0] = 99


def _wild_episode(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episodes[0].started.episode = 5


def _no_scale(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episodes[0].started.dual_scale[0] = 0.0


def _wild_dual(snapshot: events_pb2.Snapshot) -> None:
    snapshot.dual_variables[0] = math.nan


def _negative_episode(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episode = -1
    del snapshot.episodes[:]


def _no_spec(snapshot: events_pb2.Snapshot) -> None:
    snapshot.ClearField("spec")


def _negative_counts(snapshot: events_pb2.Snapshot) -> None:
    table = np.full((1, 4, 3, 4), -5, "<i8")
    snapshot.transition_counts.data = zlib.compress(table.tobytes())


def _bomb(snapshot: events_pb2.Snapshot) -> None:
    snapshot.transition_counts.data = zlib.compress(bytes(100 * 1024 * 1024), 1)


@pytest.mark.parametrize(
    "spoil",
    [
        _deleted,
        _newer,
        _zipped_badly,
        _misshapen,
        _short_totals,
        _two_duals,
        _short_policy,
        _wild_step,
        _wild_episode,
        _no_scale,
        _wild_dual,
        _negative_episode,
        _no_spec,
        _negative_counts,
        _bomb,
    ],
)
def test_an_import_that_makes_no_sense_is_refused(
    wire: Any, refusal: Refuse, transition: See, spoil: Callable[[events_pb2.Snapshot], None]
) -> None:
    """A digest proves the transport, not the sender: what could not be served is not stored either."""
    agent = wire.create()
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0))
    snapshot = events_pb2.Snapshot.FromString(exported(wire, agent)[0])
    spoil(snapshot)
    data = snapshot.SerializeToString()
    new = f"{agent}-new"
    refused = refusal(lambda: imported(wire, new, data, hashlib.sha256(data).digest(), 65536))
    assert refused.code == Code.INVALID_ARGUMENT
    assert refusal(lambda: wire.status(new)).code == Code.NOT_FOUND


def test_an_agent_can_be_verified(wire: Any, refusal: Refuse) -> None:
    """What is stored, folded again, is what is served."""
    agent = wire.create()
    play(wire, agent, 2)
    reply = wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=agent))
    assert (reply.ok, reply.difference, reply.events) == (True, "", wire.status(agent).version)
    assert reply.state_digest == wire.status(agent).state_digest
    assert refusal(lambda: wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent="nobody"))).code == Code.NOT_FOUND


async def test_verifying_finds_a_difference(bench: Any, make_spec: Callable[..., model_pb2.AgentSpec]) -> None:
    """A record that was corrupted in memory is detected."""
    await bench.commands.create("a", make_spec())
    assert (await bench.agents.verify("a")).equal
    bench.record("a").totals.transitions += 1
    assert not (await bench.agents.verify("a")).equal


# --- beside the services


def test_reflection_lists_the_services(wire: Any) -> None:
    """A client without the contract can ask for it."""
    stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = stub.ServerReflectionInfo(iter([request]))
    names = {service.name for service in reply.list_services_response.service}
    assert {"safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService", "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("service", ["", "safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService"])
def test_health_of_each_service(wire: Any, service: str) -> None:
    """Serving, overall and each; an unknown one is NOT_FOUND."""
    stub = health_pb2_grpc.HealthStub(wire.channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() == Code.NOT_FOUND
