"""Options of the commands whose world may change: `--then` and `--walk`."""

from typing import Annotated

import typer

Then = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ENVIRONMENT@N",
        show_default=False,
        help="After N episodes the world has this environment's kernel. The problem stays: states, actions, horizon, rewards, "
        "costs, budgets. May be repeated in ascending order.",
    ),
]
Walk = Annotated[
    str | None,
    typer.Option(
        metavar="PARAMETER=STEP@N",
        show_default=False,
        help="After every N episodes the environment's parameter goes up or down by STEP, as in departure=0.05@200.",
    ),
]
