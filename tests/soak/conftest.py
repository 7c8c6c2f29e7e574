"""Servers as processes, and what the tests of this directory share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "system"))  # and those that start servers

from server_fixture import new_server  # noqa: F401  # a fixture
