"""Documentation is checked like code: its links lead somewhere and its snippets run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of this directory share
sys.path.append(str(Path(__file__).parents[1]))  # for what the tests of the README have
sys.path.insert(1, str(Path(__file__).parents[1] / "system"))  # for ports
