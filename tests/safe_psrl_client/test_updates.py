"""Updates and histories through the client: what is sent, and what is refused before it is sent."""

from typing import Any

import pytest

from safe_psrl_client import AsyncClient, Client, FailedPreconditionError, InvalidArgumentError, InvalidDocumentError
from safe_psrl_client.updates import update_from_document

BUDGET = "constraints.resource.cost_budget"


def budget_of(client: Client, agent: str) -> float:
    return client.get_agent(agent).status.constraints[0].cost_budget


def constraint_of(client: Client, agent: str) -> str:
    return client.get_agent(agent).status.constraints[0].name


def test_a_budget_is_changed_and_the_log_says_so(client: Client, toy: str) -> None:
    field, before = f"constraints.{constraint_of(client, toy)}.cost_budget", budget_of(client, toy)
    tried = client.update_agent(toy, {field: before / 2}, dry_run=True)
    assert tried.after.costs[0] <= tried.before.costs[0]
    assert budget_of(client, toy) == before
    reply = client.update_agent(toy, {field: before / 2}, reason="test", expected_version=1)
    assert reply.changes == [f"{field} is {before / 2}, was {before}"]
    assert budget_of(client, toy) == before / 2
    assert client.update_agent(toy, {field: before / 2}).changes == []
    with pytest.raises(FailedPreconditionError, match="has version 2"):
        client.update_agent(toy, {field: before}, expected_version=1)
    entries = list(client.list_events(toy))
    assert [entry.reason for entry in entries] == ["test", ""]


async def test_the_same_with_asyncio(server: str, toy: str) -> None:
    async with AsyncClient(server) as other:
        reply = await other.update_agent(toy, {"drift.on_detect": "forget", "options.confidence": 0.9})
        assert sorted(reply.changes) == ["drift.on_detect is forget, was alert", "options.confidence is 0.9, was 0.98"]
        assert len([entry async for entry in other.list_events(toy)]) == 2
        assert not (await other.get_history(toy)).points


def test_none_is_the_default(client: Client, toy: str) -> None:
    client.update_agent(toy, {"options.confidence": 0.9, "max_open_episodes": 3, "drift.detect": False})
    client.update_agent(toy, {"options.confidence": None, "max_open_episodes": None, "drift": None})
    spec = client.get_agent(toy, with_spec=True).spec
    assert (spec.options.confidence, spec.max_open_episodes, spec.drift.detect) == (0.98, 1, True)


def test_tables_and_the_fallback_policy(client: Client, toy: str) -> None:
    spec = client.get_agent(toy, with_spec=True).spec
    fallback = [[0] * spec.cmdp.num_states] * spec.cmdp.horizon
    reward = [[0.5] * spec.cmdp.num_actions] * spec.cmdp.num_states
    client.update_agent(toy, {"fallback_policy": fallback, "reward": reward})
    status = client.get_agent(toy).status
    assert status.has_fallback
    assert client.update_agent(toy, {"fallback_policy": None}).changes == ["fallback_policy has other entries"]
    assert not client.get_agent(toy).status.has_fallback


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("seed", 3, "seed: cannot be updated; the fields that can are reward"),
        ("horizon", 3, "horizon: cannot be updated"),
        ("warm_start.weight", 3, "warm_start.weight: cannot be updated"),
        ("constraints.a.name", "b", "constraints.a.name: cannot be updated; the fields that can are cost_budget"),
        ("confidence", 0.9, r"confidence: is not a field; did you mean options\.confidence\?"),
        ("speed", 3, "speed: is not a field"),
        ("constraints.a.budget", 3, "did you mean cost_budget"),
        ("constraints.cost_budget", 3, "constraint|NAME|no constraint"),
        ("drift.on_detct", "x", "did you mean on_detect"),
        ("options.confidnce", 0.9, "did you mean confidence"),
        ("options.confidnce", None, "did you mean confidence"),
        ("max_open_episodes.more", 1, "set as a whole"),
        (BUDGET, "much", "must be a number"),
        ("reward", [[1], [1, 2]], "rectangular"),
    ],
)
def test_a_field_that_is_wrong_is_named(client: Client, toy: str, field: str, value: Any, complaint: str) -> None:
    with pytest.raises((InvalidDocumentError, InvalidArgumentError), match=complaint):
        client.update_agent(toy, {field: value})


def test_the_mask_has_the_contracts_paths() -> None:
    update = update_from_document({BUDGET: 2.0, "reward": [[1.0]], "options.method": "published", "drift": {"detect": False}})
    assert update.paths == ["cmdp.constraints.resource.cost_budget", "cmdp.reward", "options.method", "drift"]
    assert update.spec.cmdp.constraints[0].cost_budget == 2.0
    assert not update.spec.drift.detect
