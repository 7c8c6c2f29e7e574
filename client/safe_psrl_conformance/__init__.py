"""The conformance kit: does what listens at an address, a server or a proxy before one, keep the protocol of docs/protocol.md?

It needs the light client alone. Checks are grouped by chapters of that page; `run` makes a verdict of each. They work on
agents of their own, which are deleted at the end.
"""

from importlib import import_module

from safe_psrl_conformance.check import CHAPTERS, CHECKS, Check, Verdict, run, selected
from safe_psrl_conformance.wire import Wire

__all__ = ["CHAPTERS", "CHECKS", "Check", "Verdict", "Wire", "run", "selected"]

for _chapter in CHAPTERS:
    import_module(f"{__name__}.{_chapter}")  # registers its checks
