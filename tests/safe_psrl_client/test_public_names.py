"""What the packages offer by name: documented, typed, and without numpy."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import safe_psrl
import safe_psrl_cli
import safe_psrl_client
import safe_psrl_conformance
import safe_psrl_console
import safe_psrl_experiments
import safe_psrl_proto
import safe_psrl_server
import safe_psrl_testbed

PACKAGES = [
    safe_psrl,
    safe_psrl_cli,
    safe_psrl_client,
    safe_psrl_conformance,
    safe_psrl_console,
    safe_psrl_experiments,
    safe_psrl_proto,
    safe_psrl_server,
    safe_psrl_testbed,
]


def public_callables() -> Iterator[tuple[str, object]]:
    """Every exported class and function of the client, and their public methods and properties."""
    for name in safe_psrl_client.__all__:
        value = getattr(safe_psrl_client, name)
        if inspect.isclass(value):
            yield name, value
            members = {key: member for key, member in vars(value).items() if not key.startswith("_")}
            yield from ((f"{name}.{key}", one) for key, one in members.items() if callable(one) or hasattr(one, "__get__"))
        elif inspect.isfunction(value):
            yield name, value


@pytest.mark.parametrize(("name", "value"), list(public_callables()), ids=[name for name, _ in public_callables()])
def test_everything_public_has_a_docstring(name: str, value: object) -> None:
    text = getattr(value, "__doc__", None)
    assert text, f"{name} is not documented"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_package_is_marked_as_typed(package: ModuleType) -> None:
    assert package.__file__ is not None
    assert (Path(package.__file__).parent / "py.typed").exists()


def test_exported_names_exist_once() -> None:
    for package in PACKAGES:
        names = getattr(package, "__all__", [])
        assert all(hasattr(package, name) for name in names)
        assert len(set(names)) == len(names)


def test_the_client_does_not_load_numpy() -> None:
    script = "import sys, safe_psrl_client; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
