"""The page of one agent in a real browser: it lives, and what it does is done at the service."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from safe_psrl_client import Client, spec_from_document
from tests.safe_psrl_console.simulated_agents import play_some, simulation

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)
OpenPage = Callable[..., Page]
NAME = "edge/eu-west:7.buffer"
PAUSED = 2


@pytest.fixture(scope="module")
def agent(client: Client) -> str:
    play_some(client, NAME)
    return NAME


def answer(page: Page, text: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=text, exact=True).click()


def test_charts_grow_while_a_simulation_runs(client: Client, server: str, agent: str, open_page: OpenPage) -> None:
    page = open_page(f"/agent/{agent}")
    expect(page.get_by_role("heading", level=1)).to_have_text(agent)
    drawing = page.locator("[data-chart=cost] [data-points]")
    with simulation(server, agent):
        expect(drawing).to_have_attribute("data-points", re.compile(r"^([4-9]|\d\d+)$"))
        expect(page.locator("[data-chart=cost] svg path[stroke='var(--line-a)']")).not_to_have_count(0)
    expect(page.locator("[data-chart=cost] svg")).to_contain_text("budget 5")
    expect(page.locator(".facts dd").first).to_have_text(f"{client.get_agent(agent).status.episode:,}")


@pytest.mark.parametrize("method", ["certified", "published"])
def test_only_what_the_method_has_is_shown(client: Client, open_page: OpenPage, method: str) -> None:
    play_some(client, f"by-{method}", method=method)
    page = open_page(f"/agent/by-{method}")
    expect(page.locator(".agent-head")).to_contain_text(f"method {method}")
    bound = page.get_by_role("button", name="Draw the theorem's bound")
    if method == "certified":
        expect(page.locator("[data-constraint]")).to_contain_text("Certified: the plan's expected cost is at most")
        expect(page.locator("[data-chart=dual] h2")).to_have_text("Pessimism")
        expect(bound).to_have_count(0)
        return
    expect(page.locator("[data-constraint]")).not_to_contain_text("Certified")
    expect(page.locator("[data-chart=dual]")).to_contain_text("dual variable")
    expect(page.locator("[data-chart=regret]")).to_contain_text("The theorem's bound:")
    bound.click()
    expect(page.locator("[data-chart=regret] svg")).to_contain_text("the theorem's bound (right)")


def test_policy_and_posterior_are_what_the_service_has(client: Client, agent: str, open_page: OpenPage) -> None:
    page = open_page(f"/agent/{agent}")
    policy = client.get_policy(agent).policy
    cells = page.locator("[data-map=policy] rect")
    expect(cells).to_have_count(policy.horizon * policy.num_states)
    cells.first.hover()
    expect(page.locator("[data-map=policy] figcaption")).to_contain_text(f"step 0, state 0: action {policy.actions[0]}")
    transitions = client.get_agent(agent).status.transitions
    expect(page.locator("[data-map=posterior]")).to_contain_text(f"{transitions:,} transitions")


def test_pausing_asks_for_a_reason_and_resuming_for_confirmation(client: Client, agent: str, open_page: OpenPage) -> None:
    page = open_page(f"/agent/{agent}")
    page.get_by_role("button", name="Pause …").click()
    answer(page, "Pause")
    expect(page.get_by_role("dialog")).to_contain_text("Enter a reason")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert client.get_agent(agent).status.condition != PAUSED

    page.get_by_role("button", name="Pause …").click()
    page.get_by_label("Reason").fill("a pump is being replaced")
    answer(page, "Pause")
    expect(page.locator(".agent-head .condition")).to_have_text("paused")
    status = client.get_agent(agent).status
    assert (status.condition, status.condition_reason) == (PAUSED, "a pump is being replaced")
    expect(page.locator(".events")).to_contain_text("Paused: a pump is being replaced")

    page.get_by_role("button", name="Resume …").click()
    answer(page, "Cancel")
    assert client.get_agent(agent).status.condition == PAUSED
    page.get_by_role("button", name="Resume …").click()
    answer(page, "Resume")
    expect(page.locator(".agent-head .condition")).to_have_text("active")
    assert client.get_agent(agent).status.condition != PAUSED
    expect(page.locator(".events")).to_contain_text("Resumed")


def test_an_export_is_what_import_accepts(client: Client, agent: str, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(f"/agent/{agent}")
    page.get_by_role("button", name="Export …").click()
    with page.expect_download() as download:
        answer(page, "Export")
    assert download.value.suggested_filename == "edge-eu-west-7.buffer.agent"
    download.value.save_as(tmp_path / "exported")
    imported = client.import_agent("imported", (tmp_path / "exported").read_bytes())
    original = client.get_agent(agent).status
    assert (imported.transitions, imported.state_digest) == (original.transitions, original.state_digest)


def test_several_constraints_have_a_gauge_each_and_share_the_charts(client: Client, open_page: OpenPage) -> None:
    names = ("heat", "noise")
    constraints = [{"name": name, "cost": [[0, 1]], "cost_budget": 2, "satisfiable_cost": 1} for name in names]
    document = {"num_states": 1, "num_actions": 2, "horizon": 4, "reward": [[0, 1]], "constraints": constraints}
    client.create_agent("several", spec_from_document(document))
    page = open_page("/agent/several")
    for name in names:
        expect(page.locator(f'[data-constraint="{name}"]')).to_contain_text("The budget is 2 per episode.")
    expect(page.locator("[data-map=policy]")).to_contain_text("No episode has started yet")
    page.get_by_role("button", name="noise").click()
    expect(page.get_by_role("button", name="noise")).to_have_attribute("aria-pressed", "true")


def test_a_missing_agent_is_reported_and_shown_once_it_exists(client: Client, open_page: OpenPage) -> None:
    page = open_page("/agent/no/such:agent")
    expect(page.get_by_test_id("message")).to_contain_text("There is no agent no/such:agent")
    client.create_agent("no/such:agent", "inventory")
    expect(page.locator(".facts")).to_be_visible()
    client.delete_agent("no/such:agent")
    expect(page.get_by_test_id("message")).to_be_visible()
