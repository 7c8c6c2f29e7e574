"""The service with two leaks, for the test that must detect them: it keeps every report for ever, and
leaves a file open after each start of an episode. Called like `safe-psrl`."""

import os
from typing import Any

from safe_psrl_cli.main import main
from safe_psrl_server.agents.commands import AgentCommands

BUFFER = 20_000  # bytes that are kept with a report

kept: list[Any] = []


def make_leaky() -> None:
    report, start = AgentCommands.report, AgentCommands.start_episode

    def reporting(commands: AgentCommands, request: Any, **how: Any) -> Any:
        kept.append((request, bytearray(BUFFER)))
        return report(commands, request, **how)

    def starting(commands: AgentCommands, request: Any) -> Any:
        kept.append(os.open("/dev/null", os.O_RDONLY))
        return start(commands, request)

    AgentCommands.report = reporting  # type: ignore[method-assign]
    AgentCommands.start_episode = starting  # type: ignore[method-assign]


if __name__ == "__main__":
    make_leaky()
    main()
