"""Servers with identities, each with a directory of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.scene import Scene
from tests.system.server_process import ServerProcess

NewScene = Callable[..., Scene]


@pytest.fixture(scope="module")
def new_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewScene]:
    """`new_scene(settings, quotas)`: a server that serves, with `settings` in its configuration, and quotas by identity."""
    made: list[ServerProcess] = []

    def make(settings: str = "", quotas: dict[str, dict[str, Any]] | None = None) -> Scene:
        root = tmp_path_factory.mktemp("attacked")
        identities = root / "identities.toml"
        server = ServerProcess(root / "server", settings=f'{settings}\n[security]\nidentities = "{identities}"\n')
        made.append(server)
        scene = Scene(server, identities)
        for name, most in (quotas or {}).items():
            scene.allow(name, **most)
        server.start()
        return scene

    yield make
    for server in made:
        server.kill()
        server.close()


@pytest.fixture(scope="module")
def scene(new_scene: NewScene) -> Scene:
    """A server with the default limits, shared by the tests of a module."""
    return new_scene()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Latencies are judged: these tests run alone on the machine, and not beside others in the slow tier."""
    if "SAFE_PSRL_ATTACK_ROWS" not in os.environ:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="make test-attacks runs it"))
