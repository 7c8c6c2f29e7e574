"""The configuration of the front, as it is shipped, is one that Envoy takes."""

import subprocess

from tests.system.front import SHIPPED, envoy


def test_the_shipped_configuration_is_valid() -> None:
    checked = subprocess.run([envoy(), "--mode", "validate", "-c", SHIPPED], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "OK" in checked.stdout
