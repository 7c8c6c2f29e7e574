"""Takes the screenshots of docs/console.md: a real service, agents that learn for a few minutes, the real console.

Run it as `python -m tests.safe_psrl_console.take_screenshots`; `--seconds` shortens it.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import sync_playwright

from safe_psrl_client import Client
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.logs import set_up_logs
from tests.safe_psrl_console.conftest import chromium, running_console
from tests.safe_psrl_console.simulated_agents import simulation

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FLEET = [
    ("edge/eu-west/player-1", "streaming-buffer", "certified"),
    ("edge/eu-west/player-2", "streaming-buffer", "published"),
    ("edge/eu-west/player-3", "streaming-buffer", "literal"),
    ("edge/us-east/player-1", "streaming-buffer", "certified"),
    ("edge/us-east/player-2", "streaming-buffer", "published"),
    ("warehouse/north", "inventory", "published"),
    ("warehouse/south", "inventory", "certified"),
    ("warehouse/west", "inventory", "published"),
    ("lab/factored", "factored-toy", "published"),
]
SHOWN, RESTING = "edge/us-east/player-1", "warehouse/west"


def take(url: str, path: Path, where: str, height: int, scale: float) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": height}, device_scale_factor=scale)
        page.goto(url + where)
        page.wait_for_selector("[data-agent], [data-map=posterior] rect")
        page.wait_for_timeout(2_500)
        page.screenshot(path=path)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200.0)
    seconds = parser.parse_args().seconds
    set_up_logs("console", "error")
    with (
        EmbeddedServer() as server,
        Client(server.target) as client,
        running_console(server.target) as url,
        ExitStack() as players,
    ):
        for seed, (name, preset, method) in enumerate(FLEET, 1):
            client.create_agent(name, preset, options=model_pb2.SafePsrlOptions(method=method), seed=seed)
            if name != RESTING:
                players.enter_context(simulation(server.target, name, preset, seed))
        client.pause_agent(RESTING, "stock-taking until Monday")
        time.sleep(seconds / 2)
        client.update_agent(SHOWN, {"constraints.fast-service.cost_budget": 4}, reason="night tariff")
        time.sleep(seconds / 2)
        client.pause_agent(SHOWN, "a new player is rolled out")
        time.sleep(4)
        client.resume_agent(SHOWN)
        time.sleep(10)
        take(url, IMAGES / "console-fleet.png", "/", 860, 1.5)
        take(url, IMAGES / "console-agent.png", f"/agent/{SHOWN}", 1800, 1.0)


if __name__ == "__main__":
    main()
