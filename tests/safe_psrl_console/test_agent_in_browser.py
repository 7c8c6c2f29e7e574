"""The page of one agent in a real browser: it lives, and what it does is done at the service."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from safe_psrl.problem.documents import spec_to_document
from safe_psrl_client import Client, RemoteAgent, Transition, play, spec_from_document
from safe_psrl_testbed import scenario_named
from tests.safe_psrl_console.conftest import running_console
from tests.safe_psrl_console.simulated_agents import play_some, simulation
from tests.safe_psrl_server.agents.test_shadow import choice

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


def test_a_restart_of_the_console_keeps_the_charts(
    client: Client, server: str, agent: str, open_page: OpenPage, browser: Browser
) -> None:
    """They are the service's: another console, which has just started, draws the same points and marks."""
    client.pause_agent(agent, "inspection")
    client.resume_agent(agent)
    drawing = "[data-chart=cost] [data-points]"
    before = open_page(f"/agent/{agent}").locator(drawing)
    expect(before).to_have_attribute("data-marks", "2")
    points = before.get_attribute("data-points")
    assert int(points) >= 25
    with running_console(server) as url:
        page = browser.new_page()
        page.goto(f"{url}/agent/{agent}")
        expect(page.locator(drawing)).to_have_attribute("data-points", points)
        expect(page.locator(drawing)).to_have_attribute("data-marks", "2")
        expect(page.locator(".events")).to_contain_text("inspection")
        page.close()


@pytest.mark.parametrize("method", ["certified", "published"])
def test_only_what_the_method_has_is_shown(client: Client, open_page: OpenPage, method: str) -> None:
    play_some(client, f"by-{method}", method=method)
    page = open_page(f"/agent/by-{method}")
    expect(page.locator(".agent-head")).to_contain_text(f"method {method}")
    cost, dual = page.locator("[data-chart=cost] svg"), page.locator("[data-chart=dual]")
    expect(cost).to_contain_text("predicted")
    if method == "certified":
        expect(page.locator("[data-constraint]")).to_contain_text("Certified: the plan's expected cost is at most")
        expect(cost).to_contain_text("certified")
        expect(dual).to_have_count(0)
        return
    expect(page.locator("[data-constraint]")).not_to_contain_text("Certified")
    expect(cost).not_to_contain_text("certified")
    expect(dual).to_contain_text("dual variable")
    expect(page.locator("[data-chart=regret]")).to_contain_text("The theorem's bound:")


def test_policy_and_posterior_are_what_the_service_has(client: Client, agent: str, open_page: OpenPage) -> None:
    page = open_page(f"/agent/{agent}")
    policy = client.get_policy(agent).policy
    cells = page.locator("[data-map=policy] rect")
    expect(cells).to_have_count(policy.horizon * policy.num_states)
    cells.first.hover()
    expect(page.locator("[data-map=policy] figcaption")).to_contain_text(f"step 0, state 0: action {policy.actions[0]}")
    transitions = client.get_agent(agent).status.transitions
    expect(page.locator("[data-map=posterior]")).to_contain_text(f"{transitions:,} transitions")


def test_a_click_on_the_policy_explains_it(client: Client, open_page: OpenPage) -> None:
    buffer = scenario_named("streaming-buffer")
    names = {"state_names": [f"{n} packets" for n in range(10)], "action_names": ["fast", "slow"]}
    client.create_agent("explained", spec_from_document(spec_to_document(buffer.spec) | names))
    play(buffer.environment(1), RemoteAgent(client, "explained", "local"), 25)
    page = open_page("/agent/explained")
    policy = page.locator("[data-map=policy]")
    policy.locator("rect").first.hover()
    expect(policy.locator("figcaption")).to_contain_text("step 0, state 0 (0 packets): action ")
    expect(policy.locator(".legend")).to_contain_text("(fast)")
    policy.locator("rect").nth(2 * 10 + 3).click()
    explained = page.get_by_test_id("explanation")
    expect(explained).to_contain_text("In state 2 (2 packets), step 3, episode ")
    found = client.explain_action("explained", 2, 3)
    for one in found.actions:
        expect(explained).to_contain_text(f"{one.reward.mean:.4g} ± {one.reward.sigma:.2g}")
    expect(explained).to_contain_text("Next plan, budgets -10 %: action ")


def test_pausing_and_resuming_ask_for_a_reason(client: Client, agent: str, open_page: OpenPage) -> None:
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
    expect(page.locator(".events")).to_contain_text("a pump is being replaced")

    page.get_by_role("button", name="Resume …").click()
    answer(page, "Cancel")
    assert client.get_agent(agent).status.condition == PAUSED
    page.get_by_role("button", name="Resume …").click()
    page.get_by_label("Reason").fill("the new pump runs")
    answer(page, "Resume")
    expect(page.locator(".agent-head .condition")).to_have_text("active")
    assert client.get_agent(agent).status.condition != PAUSED
    expect(page.locator(".events")).to_contain_text("Resumed")
    expect(page.locator(".events")).to_contain_text("the new pump runs")


def test_budgets_are_changed_after_a_dry_run_and_a_confirmation(client: Client, open_page: OpenPage) -> None:
    play_some(client, "budgets", episodes=30)
    page = open_page("/agent/budgets")
    dialog, budget = page.get_by_role("dialog"), page.get_by_label("Budget of fast-service")
    page.get_by_role("button", name="Change budgets …").click()
    answer(page, "Preview")
    expect(dialog).to_contain_text("Enter a reason")
    page.get_by_label("Reason").fill("night tariff")
    answer(page, "Preview")
    expect(dialog).to_contain_text("These are the present budgets")
    budget.fill("11")
    answer(page, "Preview")
    expect(dialog.locator(".problem")).to_contain_text("cost_budget")  # the service's error

    budget.fill("4")
    answer(page, "Preview")
    preview = page.get_by_test_id("preview")
    expect(preview).to_contain_text("cost of fast-service")
    expect(preview).to_contain_text("at most, certified")
    expect(dialog).to_contain_text("constraints.fast-service.cost_budget is 4.0, was 5.0")
    answer(page, "Back")
    expect(preview).to_have_count(0)
    answer(page, "Preview")
    expect(preview).to_be_visible()
    assert client.get_agent("budgets").status.definition_version == 1

    answer(page, "Change budgets")
    expect(dialog).to_have_count(0)
    status = client.get_agent("budgets").status
    assert (status.constraints[0].cost_budget, status.definition_version) == (4.0, 2)
    assert [entry.reason for entry in client.list_events("budgets")] == ["night tariff", ""]
    expect(page.locator(".events")).to_contain_text("constraints.fast-service.cost_budget is 4.0, was 5.0")
    drawing = page.locator("[data-chart=cost]")
    expect(drawing.locator("svg")).to_contain_text("budget 4")
    expect(drawing.locator("[data-marks='1']")).to_have_count(1)
    hover_at(page, drawing, 30 / 30)
    expect(drawing.locator(".chart-tip")).to_contain_text("Updated: night tariff")


def hover_at(page: Page, chart: Locator, share: float) -> None:
    """Point at a share of the horizontal axis, which ends a little before the right edge."""
    chart.scroll_into_view_if_needed()
    place = chart.locator("svg").bounding_box()
    left, right = place["x"] + 40, place["x"] + place["width"] - 17
    page.mouse.move(left + share * (right - left), place["y"] + place["height"] / 2)


def test_budgets_that_another_operator_has_changed_meanwhile_are_not_overwritten(client: Client, open_page: OpenPage) -> None:
    client.create_agent("contended", "streaming-buffer")
    page = open_page("/agent/contended")
    page.get_by_role("button", name="Change budgets …").click()
    page.get_by_label("Budget of fast-service").fill("4")
    page.get_by_label("Reason").fill("night tariff")
    answer(page, "Preview")
    expect(page.get_by_test_id("preview")).to_be_visible()
    client.update_agent("contended", {"constraints.fast-service.cost_budget": 6})
    answer(page, "Change budgets")
    expect(page.get_by_role("dialog").locator(".problem")).to_contain_text("version")
    assert client.get_agent("contended").status.constraints[0].cost_budget == 6


def test_drift_has_a_banner_an_entry_a_mark_and_outlined_rows(client: Client, open_page: OpenPage) -> None:
    """The kernel changes: the buffer drains, and then it fills."""
    client.create_agent("drifting", "streaming-buffer")
    client.update_agent("drifting", {"drift.memory_visits": 20.0, "drift.false_alarm_steps": 100.0})
    page = open_page("/agent/drifting")
    expect(page.locator("[data-chart=drift]")).to_contain_text("limit 1,000")
    expect(page.get_by_test_id("drift")).to_be_hidden()
    for next_state in (0, 1):
        for _ in range(40):
            with client.episode("drifting", 0) as episode:
                while not episode.done:
                    episode.report(next_state if episode.state == 0 else 0)
    assert client.get_agent("drifting").status.drift_detections > 0
    detected = next(entry for entry in client.list_events("drifting") if entry.details)
    banner = page.get_by_test_id("drift")
    expect(banner).to_be_visible()
    expect(banner).to_contain_text("Drift was detected at")
    expect(banner).to_contain_text("nothing was forgotten")
    expect(banner).to_contain_text(detected.details[1])
    expect(page.locator(".events")).to_contain_text("Drift detected")
    rows = len(detected.details) - 1
    expect(page.locator("[data-map=posterior] rect.marked")).to_have_count(rows)
    page.goto(page.url.rpartition("/agent/")[0])
    expect(page.locator('[data-agent="drifting"]')).to_contain_text("drift")


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


def test_a_shadow_agent_is_compared_promoted_and_demoted(client: Client, open_page: OpenPage) -> None:
    name = "shadow-cell"
    client.create_agent(name, choice())
    for _ in range(20):
        client.report_episode(name, client.start_episode(name).episode, [Transition(0, 0, 0)] * 2)
    page = open_page(f"/agent/{name}")
    card = page.get_by_test_id("comparison")
    expect(card).to_contain_text("The agent may be promoted")
    expect(card).to_contain_text("controller, 20 episodes")
    page.get_by_role("button", name="Promote …").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("it gains")
    answer(page, "Promote")
    expect(page.get_by_role("button", name="Put into shadow …")).to_be_visible()
    expect(card).to_be_hidden()
    assert client.get_agent(name).status.mode == "live"
    page.get_by_role("button", name="Put into shadow …").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("new firmware")
    answer(page, "Demote")
    expect(card).to_be_visible()
    assert next(iter(client.list_events(name))).reason == "new firmware"
