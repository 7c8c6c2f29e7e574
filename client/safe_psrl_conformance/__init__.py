"""The conformance kit: checks that a server, or a proxy in front of one, follows the protocol of docs/protocol.md.

It needs only the light client. Checks are grouped by chapters of that page; `run` returns a verdict for each. They work on
agents of their own, which are deleted at the end.
"""

from importlib import import_module

from safe_psrl_conformance.check import CHAPTERS, CHECKS, Check, Verdict, run, selected
from safe_psrl_conformance.wire import Wire

__all__ = ["CHAPTERS", "CHECKS", "Check", "Verdict", "Wire", "run", "selected"]

for _chapter in CHAPTERS:
    import_module(f"{__name__}.{_chapter}")  # registers its checks
