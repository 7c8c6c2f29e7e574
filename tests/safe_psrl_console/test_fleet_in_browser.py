"""The page of all agents in a real browser."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from safe_psrl_client import Client
from tests.safe_psrl_console.simulated_agents import play_some, simulation

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)
OpenPage = Callable[..., Page]


def row(page: Page, agent: str) -> object:
    return page.locator(f'[data-agent="{agent}"]')


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def test_without_agents_it_shows_how_to_create_one_and_then_the_first(client: Client, server: str, open_page: OpenPage) -> None:
    """The first test of this module: the service has none yet."""
    page = open_page("/")
    expect(page.get_by_test_id("empty")).to_contain_text(
        f"safe-psrl agent create buffer --preset streaming-buffer --target {server}"
    )
    client.create_agent("first", "streaming-buffer")
    expect(row(page, "first")).to_contain_text("too early")
    expect(page.get_by_test_id("headline")).to_contain_text("No agent has completed 20 episodes yet")
    client.delete_agent("first")
    expect(page.get_by_test_id("empty")).to_be_visible()


def test_agents_appear_learn_and_are_classified(client: Client, server: str, open_page: OpenPage) -> None:
    page = open_page("/")
    play_some(client, "edge/eu:1.buffer")
    expect(row(page, "edge/eu:1.buffer")).to_have_attribute("data-level", re.compile("within|near|over"))
    expect(page.get_by_test_id("headline")).to_contain_text("budget")
    expect(page.get_by_test_id("connection")).to_have_text(f"live · {server}")
    episode = row(page, "edge/eu:1.buffer").locator(".cell-episode")
    with simulation(server, "edge/eu:1.buffer"):
        before = int(re.sub(r"\D", "", episode.inner_text()))
        expect(episode).not_to_have_text(re.compile(rf"\D{before}$"))
    status = client.get_agent("edge/eu:1.buffer").status
    expect(row(page, "edge/eu:1.buffer").locator(".cell-predicted")).to_contain_text(
        f"{status.constraints[0].predicted_cost:.2f}"
    )
    expect(row(page, "edge/eu:1.buffer").locator(".cell-reward")).to_contain_text(f"{status.recent_reward:.2f}")


def test_search_filter_and_sort(client: Client, open_page: OpenPage) -> None:
    for name, preset, episodes in (
        ("depot:north", "inventory", 3),
        ("depot:south", "inventory", 1),
        ("toy", "factored-toy", 2),
    ):
        play_some(client, name, preset, episodes)
    client.pause_agent("depot:south", "stock-taking")
    page = open_page("/")
    rows = page.locator("[data-agent]")
    expect(row(page, "toy")).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type("DEPOT")
    expect(rows).to_have_count(2)
    page.locator('[data-filter="paused"]').click()
    expect(rows).to_have_count(1)
    expect(row(page, "depot:south")).to_contain_text("paused")
    page.reload()  # what was asked for is in the address
    expect(rows).to_have_count(1)

    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.get_by_role("status")).to_contain_text("No agent matches")
    page.get_by_role("button", name="Show all").click()
    expect(row(page, "toy")).to_be_visible()
    page.get_by_role("button", name="Agent", exact=True).click()
    names = [one.get_attribute("data-agent") for one in rows.all()]
    assert names == sorted(names)
    page.get_by_role("button", name=re.compile("^Agent")).click()
    expect(rows.first).to_have_attribute("data-agent", names[-1])


def test_everything_can_be_reached_by_keyboard(client: Client, open_page: OpenPage) -> None:
    client.create_agent("keyboard/one", "streaming-buffer")
    page = open_page("/?q=keyboard")
    expect(row(page, "keyboard/one")).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "keyboard/one":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement, '::after').outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("keyboard/one")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_appearance_follows_the_system_until_it_is_chosen(open_page: OpenPage, scheme: str) -> None:
    page = open_page("/", color_scheme=scheme)
    expect(page.locator("body")).to_have_class(re.compile(f"body--{scheme}"))
    expect(page.locator("[data-theme-button]")).to_have_attribute("data-mode", "auto")
    page.locator("[data-theme-button]").click()
    page.locator("[data-theme-button]").click()
    page.reload()
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))


def test_text_can_be_read_in_light_and_dark(client: Client, open_page: OpenPage) -> None:
    """WCAG AA: every text has a contrast of at least 4.5 with what is behind it."""
    play_some(client, "contrast")
    for scheme in ("light", "dark"):
        page = open_page("/", color_scheme=scheme)
        expect(row(page, "contrast")).to_be_visible()
        assert page.evaluate(TOO_FAINT) == []
        page.goto(page.url + "agent/contrast")
        expect(page.locator("[data-map=posterior] rect").first).to_be_visible()
        page.get_by_role("button", name="Pause …").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.get_by_role("dialog")).to_contain_text("Enter a reason")
        assert page.evaluate(TOO_FAINT) == []


def test_on_a_phone_nothing_scrolls_sideways(client: Client, open_page: OpenPage) -> None:
    client.create_agent("a-very-long-name/" + "x" * 100, "streaming-buffer")
    play_some(client, "phone")
    page = open_page("/", 390, 844)
    expect(row(page, "phone")).to_be_visible()
    assert not scrolls_sideways(page)
    page.goto(page.url + "agent/phone")
    expect(page.locator("[data-map=policy] svg")).to_be_visible()
    assert not scrolls_sideways(page)


def test_five_hundred_agents_stay_fluid(client: Client, open_page: OpenPage) -> None:
    """Few rows are in the document, all can be reached, and a change of one is sent alone."""
    for i in range(500):
        client.create_agent(f"fleet/agent-{i:03d}", "streaming-buffer", seed=1)
    page = open_page("/?q=fleet/&sort=name&order=up")
    frames: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda payload: frames.append(len(payload))))
    page.reload()
    expect(row(page, "fleet/agent-000")).to_be_visible()
    expect(page.locator("[role=table]")).to_have_attribute("aria-rowcount", "501")
    assert page.locator("[data-agent]").count() < 60
    frames.clear()
    play_some(client, "fleet/agent-003", episodes=2)
    expect(row(page, "fleet/agent-003").locator(".cell-episode")).to_contain_text("2")
    assert max(frames) < 5_000
    page.mouse.move(600, 500)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(row(page, "fleet/agent-499")).to_be_in_viewport()
    expect(row(page, "fleet/agent-000")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("agent-123")
    expect(page.locator("[data-agent]")).to_have_count(1)


TOO_FAINT = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const element = text.parentElement;
    const aside = element.closest('svg, script, style, .visually-hidden, .nicegui-error-popup');
    if (!text.data.trim() || !element.checkVisibility() || aside) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(text.data.trim() + ' ' + contrast.toFixed(2));
  }
  return faint;
}"""
