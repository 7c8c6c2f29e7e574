"""Shadow agents through the client: proposals are not played by accident."""

import pytest

from safe_psrl_client import AsyncClient, Client, FailedPreconditionError, InvalidArgumentError, RemoteAgent, play
from safe_psrl_client.agent import MODES, Mode
from tests.safe_psrl_server.agents.test_shadow import choice


class Line:
    """The environment of `choice`: one state, two steps."""

    def __init__(self) -> None:
        self.executed: list[int] = []

    def reset(self) -> int:
        return 0

    def step(self, action: int) -> tuple[int, float, list[float], bool]:
        self.executed.append(action)
        return 0, float(action), [0.1 * action], False


@pytest.mark.parametrize("mode", MODES)
def test_the_incumbent_acts_until_the_agent_is_promoted(client: Client, agent_name: str, mode: Mode) -> None:
    client.create_agent(agent_name, choice())
    line = Line()
    with RemoteAgent(client, agent_name, mode) as agent:
        with pytest.raises(InvalidArgumentError, match="give the incumbent that acts"):
            play(line, agent, 1)
        assert line.executed == [], "nothing was played because of a proposal"
        play(line, agent, 20, incumbent=lambda _step, _state: 0)
        assert line.executed == [0] * 40
        assert client.compare_agent(agent_name).gain.mean == pytest.approx(2.0)
        client.promote(agent_name, "it gains")
        play(line, agent, 2, incumbent=lambda _step, _state: 0)
        assert line.executed[40:] == [1] * 4
        client.demote(agent_name, "enough")
        play(line, agent, 1, incumbent=lambda _step, _state: 0)
        assert line.executed[44:] == [0] * 2
    status = client.get_agent(agent_name).status
    assert (status.completed_episodes, status.shadow_episodes) == (2, 21)


def test_a_report_in_shadow_names_what_was_executed(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, choice())
    with client.episode(agent_name, 0) as episode:
        assert episode.advisory
        with pytest.raises(ValueError, match="name the action that was executed"):
            episode.report(0)
        episode.report(0, action=0)
        episode.report(0, action=0)
    assert client.get_agent(agent_name).status.shadow_episodes == 1


async def test_the_same_with_asyncio(server: str, agent_name: str) -> None:
    async with AsyncClient(server) as client:
        await client.create_agent(agent_name, choice())
        with pytest.raises(FailedPreconditionError, match="0 of 20"):
            await client.promote(agent_name)
        assert (await client.compare_agent(agent_name, [[1], [1]])).policy.reward.mean == pytest.approx(2.0)
        assert (await client.promote(agent_name, force=True)).status.mode == "live"
        assert (await client.demote(agent_name)).status.mode == "shadow"
