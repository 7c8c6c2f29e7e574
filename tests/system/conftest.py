"""The real server as a process, one directory and port a test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of this directory share

from server_fixture import new_server  # noqa: F401  # a fixture
