"""Continuing tasks through the client library: a loop without an end, left and entered again."""

from itertools import islice

import pytest

from safe_psrl import preset, warm_up_continuing
from safe_psrl_client import Client, RemoteAgent
from safe_psrl_client.agent import MODES, Mode
from safe_psrl_client.play import play_steps
from safe_psrl_testbed import TabularEnvironment
from tests.safe_psrl_server.agents.test_continuing_agents import agent_spec


@pytest.fixture(scope="module", autouse=True)
def compiled_epochs() -> None:
    warm_up_continuing(["certified"])


def environment() -> TabularEnvironment:
    spec = preset("continuing-buffer")
    return TabularEnvironment(spec, spec.support[0] / spec.support[0].sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("mode", ["step", "stream"])
def test_steps_for_as_long_as_they_are_requested(client: Client, mode: Mode) -> None:
    name = f"endless-{mode}"
    client.create_agent(name, "continuing-buffer")
    with RemoteAgent(client, name, mode) as agent:
        results = list(islice(play_steps(environment(), agent), 60))
    status = client.get_agent(name).status
    assert len(results) == status.transitions == 60
    assert status.episode > 2
    assert len(status.open_episodes) == 1  # it is where it was


def test_the_context_goes_on_where_the_task_is(client: Client) -> None:
    client.create_agent("entered", "continuing-buffer")
    world = environment()
    state = world.reset(seed=1)
    for _ in range(3):
        with client.episode("entered", state=state) as task:
            for _ in range(10):
                outcome = world.step(task.action)
                task.report(outcome.next_state, outcome.reward, outcome.costs)
            assert not task.done
            state = task.state
    assert client.get_agent("entered").status.transitions == 30


def test_policies_are_played_locally(client: Client) -> None:
    """A call for as many steps as were seen before; what is left is reported when the loop is left."""
    client.create_agent("distant", "continuing-buffer")
    with RemoteAgent(client, "distant", "local") as agent:
        results = list(islice(play_steps(environment(), agent), 300))
    status = client.get_agent("distant").status
    assert len(results) == status.transitions == 300
    assert status.version < 60
    assert (status.overridden_actions, len(status.open_episodes)) == (0, 1)
    with RemoteAgent(client, "distant", "local", abandon_open=True) as agent:
        list(islice(play_steps(environment(), agent), 20))
    assert client.get_agent("distant").status.transitions == 320


def test_a_pause_ends_local_play(client: Client) -> None:
    """With the report of what was played."""
    client.create_agent("halted", "continuing-buffer")
    with RemoteAgent(client, "halted", "local") as agent:
        steps = play_steps(environment(), agent)
        list(islice(steps, 50))
        client.pause_agent("halted", "test")
        more = len(list(steps))
    assert client.get_agent("halted").status.transitions == 50 + more


@pytest.mark.parametrize("mode", MODES)
def test_an_incumbent_acts_beside_a_shadow(client: Client, mode: Mode) -> None:
    name = f"beside-{mode}"
    spec = agent_spec(preset("continuing-buffer"), mode="shadow")
    client.create_agent(name, spec)
    with RemoteAgent(client, name, mode) as agent:
        results = list(islice(play_steps(environment(), agent, lambda _step, _state: 1), 60))
    found = client.compare_agent(name)
    assert sum(result.costs[0] for result in results) == 0
    assert found.shadow_steps <= client.get_agent(name).status.transitions == 60
    assert found.incumbent.costs[0].mean == 0
