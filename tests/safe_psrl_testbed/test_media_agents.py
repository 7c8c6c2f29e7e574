"""The LTE cell's and the base stations' agents behind a service: what they are told is what happened, once."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest
from numpy.typing import NDArray

from safe_psrl.problem.documents import spec_to_document
from safe_psrl.problem.presets import continuing_buffer
from safe_psrl_client import Client, InvalidArgumentError, options_from_document, spec_from_document
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.messages import unpack
from safe_psrl_testbed.base_stations.simulation import BaseStationsSimulation, Grouping
from safe_psrl_testbed.base_stations.world import CLASSES, WorldSettings
from safe_psrl_testbed.media import RULES, SPEC, MediaHistory
from safe_psrl_testbed.media_players import FixedRule, MediaPlayers, ServedAgents
from safe_psrl_testbed.simulation import prepare_agent


class SteadyNetwork:
    """Fast brings a media unit, slow nothing."""

    def advance(self, fast: Sequence[bool]) -> list[float]:
        return [float(guaranteed) for guaranteed in fast]


def counts_of(client: Client, name: str) -> NDArray[np.int64]:
    return unpack(client.get_posterior(name).transition_counts)[0]


def definition_for(max_open_episodes: int) -> model_pb2.AgentSpec:
    definition = spec_from_document(spec_to_document(SPEC))
    definition.options.method = "certified"
    definition.max_open_episodes = max_open_episodes
    return definition


@pytest.mark.parametrize("shared", [False, True])
def test_a_cells_agents_learn_what_its_history_holds(client: Client, agent_name: str, shared: bool) -> None:
    names = ["m" + agent_name[-60:]] * 3 if shared else [f"m{agent_name[-60:]}-{i}" for i in range(3)]
    for name in dict.fromkeys(names):
        definition = definition_for(max_open_episodes=names.count(name))
        prepare_agent(client, name, definition, "lte-cell")
        client.start_episode(name, 0)  # left open by a run before
    history = MediaHistory(3)
    with closing(ServedAgents(client, names)) as agents:
        MediaPlayers(SteadyNetwork(), 3, seed=1).play(agents, history, 12)
    regret = history.constraint_regret[-1]
    for name in dict.fromkeys(names):
        status = client.get_agent(name).status
        mine = [ue for ue, other in enumerate(names) if other == name]
        assert status.completed_episodes == 12 * len(mine)
        assert status.constraints[0].constraint_regret == pytest.approx(regret[mine].sum())
    assert (
        np.sum([counts_of(client, name) for name in dict.fromkeys(names)], axis=0).tolist()
        == history.transition_counts.tolist()
    )


def test_a_rule_acts_until_the_agent_is_promoted(client: Client, agent_name: str) -> None:
    definition, rule, history = definition_for(max_open_episodes=2), RULES["fast-at-first"], MediaHistory(2)
    definition.mode = "shadow"
    client.create_agent(agent_name, definition)
    players = MediaPlayers(SteadyNetwork(), 2, seed=1)
    with closing(ServedAgents(client, [agent_name] * 2, rule)) as agents:
        players.play(agents, history, 10)
    assert (history.actions == np.repeat([0, 1], 5)[:, None]).all(), "what it executes is the rule"
    assert counts_of(client, agent_name).tolist() == history.transition_counts.tolist()
    assert client.get_agent(agent_name).status.shadow_episodes == 20
    with closing(ServedAgents(client, [agent_name] * 2)) as agents, pytest.raises(InvalidArgumentError, match="is in shadow"):
        players.play(agents, MediaHistory(2), 1)
    client.promote(agent_name, force=True)
    live = MediaHistory(2)
    with closing(ServedAgents(client, [agent_name] * 2)) as agents:
        players.play(agents, live, 10)
    assert (live.actions != history.actions).any()
    status = client.get_agent(agent_name).status
    assert status.constraints[0].constraint_regret == pytest.approx(live.constraint_regret[-1].sum())


def test_a_task_without_an_end_goes_on_from_window_to_window(client: Client, agent_name: str) -> None:
    names = [f"m{agent_name[-60:]}-{i}" for i in range(2)]
    for name in names:
        prepare_agent(client, name, spec_from_document(spec_to_document(continuing_buffer())), "lte-cell")
        client.start_episode(name, 3)  # left open by a run before
    history, rule = MediaHistory(2), MediaHistory(2)
    players = MediaPlayers(SteadyNetwork(), 2, seed=1, continuing=True)
    for until in (5, 12):  # the second run goes on where the first one ended
        with closing(ServedAgents(client, names)) as agents:
            players.play(agents, history, until)
    assert history.states[1:, 0].tolist() == history.states[:-1, -1].tolist()
    assert history.states[:, 0].any(), "no buffer is emptied between windows"
    for i, name in enumerate(names):
        status = client.get_agent(name).status
        assert status.transitions == 12 * SPEC.horizon
        fast = history.costs[:, i].sum() / status.transitions
        assert status.constraints[0].mean_cost == pytest.approx(fast, abs=0.1)  # of the epochs that ended
    MediaPlayers(SteadyNetwork(), 2, seed=1, continuing=True).play(FixedRule(RULES["fast-at-first"]), rule, 3)
    assert (rule.actions == np.repeat([0, 1], 5)[:, None]).all(), "a rule counts the steps of a window"


def test_an_agent_in_another_mode_is_refused(client: Client, agent_name: str) -> None:
    live, shadow = definition_for(1), definition_for(1)
    shadow.mode = "shadow"
    client.create_agent(agent_name, shadow)
    prepare_agent(client, agent_name, shadow, "lte-cell")
    with pytest.raises(InvalidArgumentError, match="is in shadow: promote it, or choose another --agent"):
        prepare_agent(client, agent_name, live, "lte-cell")
    client.promote(agent_name, force=True)
    with pytest.raises(InvalidArgumentError, match="is live already: choose another --agent"):
        prepare_agent(client, agent_name, shadow, "lte-cell")


def test_base_stations_do_not_execute_proposals(server: str, client: Client, agent_name: str) -> None:
    simulation = BaseStationsSimulation(WorldSettings(cells=1, devices=2, seed=5), server, "m" + agent_name[-60:], 2)
    simulation.prepare()
    client.demote(simulation.names[0])
    with pytest.raises(InvalidArgumentError, match="is in shadow: promote it"):
        simulation.run()


@pytest.mark.parametrize("agents_per", ["cell", "class", "device"])
def test_base_stations_agents_learn_what_their_history_holds(
    server: str, client: Client, agent_name: str, agents_per: Grouping
) -> None:
    settings = WorldSettings(cells=3, devices=9, seed=5)
    simulation = BaseStationsSimulation(settings, server, "m" + agent_name[-60:], 4, agents_per=agents_per)
    simulation.prepare()
    assert len(simulation.names) == {"cell": 3, "class": len(CLASSES), "device": 9}[agents_per]
    client.start_episode(simulation.names[0], 0)
    simulation.run()
    told = simulation.summary()
    assert told["episodes"] == told["policies"]["always-slow"]["episodes"] == 4
    assert told["steps"] == 4 * 9 * SPEC.horizon
    assert sum(row["devices"] for row in told["classes"].values()) == 9
    regret = simulation.agents_constraint_regret()
    for i, name in enumerate(simulation.names):
        status = client.get_agent(name).status
        assert status.completed_episodes == sum((groups == i).sum() for groups in simulation.groups)
        assert status.constraints[0].constraint_regret == pytest.approx(regret[-1, i])
    counts = np.sum([counts_of(client, name) for name in simulation.names], axis=0)
    assert counts.tolist() == simulation.histories["learned"].transition_counts.tolist()


def test_the_same_seed_is_the_same_run(server: str, agent_name: str) -> None:
    def played(name: str) -> list[object]:
        simulation = BaseStationsSimulation(WorldSettings(2, 6, 8), server, name, 3, agents_per="device")
        simulation.prepare()
        simulation.run()
        return [simulation.histories["learned"].states.tolist(), simulation.histories["learned"].actions.tolist()]

    assert played(f"m{agent_name[-60:]}-a") == played(f"m{agent_name[-60:]}-b")


def test_an_agent_that_may_not_play_so_many_episodes_at_once_is_refused(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer", options=options_from_document({"method": "certified"}))
    with pytest.raises(InvalidArgumentError, match="allows 1 open episodes, but 4 are needed"):
        prepare_agent(client, agent_name, definition_for(max_open_episodes=4), "lte-cell")
