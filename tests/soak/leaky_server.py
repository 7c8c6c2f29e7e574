"""The service with a leak, for the tests that must notice it.

python leaky_server.py memory|descriptors|latency serve …: `memory` keeps every report for ever, `descriptors` leaves a file
open after each episode's start, `latency` looks through all earlier reports at each one.
"""

import sys
import time
from pathlib import Path
from typing import Any

from safe_psrl_cli.main import main
from safe_psrl_server.commands import AgentCommands

kept: list[Any] = []


def make_leaky(kind: str) -> None:
    report, start = AgentCommands.report, AgentCommands.start_episode

    async def reporting(commands: AgentCommands, request: Any, **how: Any) -> Any:
        if kind != "descriptors":
            kept.append(request)
        if kind == "latency":
            time.sleep(len(kept) * 1e-6)  # as long as looking through them takes
        return await report(commands, request, **how)

    async def starting(commands: AgentCommands, request: Any) -> Any:
        if kind == "descriptors":
            kept.append(Path("/dev/null").open("rb"))
        return await start(commands, request)

    AgentCommands.report = reporting  # type: ignore[method-assign]
    AgentCommands.start_episode = starting  # type: ignore[method-assign]


if __name__ == "__main__":
    make_leaky(sys.argv[1])
    sys.argv = ["safe-psrl", *sys.argv[2:]]
    main()
