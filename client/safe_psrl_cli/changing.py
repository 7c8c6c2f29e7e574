"""Options of the commands whose world or mode may change: `--then`, `--walk`, `--more-ues` and `--shadow`."""

from typing import Annotated, NamedTuple

import typer

MAX_UES = 32

Then = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ENVIRONMENT@N",
        show_default=False,
        help="After N episodes, switch to this environment's kernel. States, actions, horizon, rewards, costs and budgets "
        "stay the same. May be repeated in ascending order.",
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


class Joining(NamedTuple):
    """UEs that join a cell, and the episodes before that."""

    ues: int
    episodes: int


NO_MORE_UES = Joining(0, 0)


def _joining(text: str | Joining) -> Joining:
    if isinstance(text, Joining):  # the default
        return text
    number, _, episodes = text.partition("@")
    if not (number.isdecimal() and episodes.isdecimal() and 1 <= int(number) <= MAX_UES):
        raise typer.BadParameter(f"must be M@N with M from 1 to {MAX_UES}, such as 2@300, got {text!r}")
    return Joining(int(number), int(episodes))


MoreUes = Annotated[
    Joining,
    typer.Option(
        metavar="M@N",
        parser=_joining,
        show_default=False,
        help="After N episodes M more UEs attach, whose streams have a guaranteed rate and no agent: the cell changes.",
    ),
]


class Watching(NamedTuple):
    """The rule that acts at first, and its episodes."""

    rule: str
    episodes: int


NO_SHADOW = Watching("", 0)


def _watching(text: str | Watching) -> Watching:
    if isinstance(text, Watching):  # the default
        return text
    from safe_psrl_testbed.media import RULES  # noqa: PLC0415

    rule, _, episodes = text.partition("@")
    if not (rule in RULES and episodes.isdecimal() and int(episodes) > 0):
        raise typer.BadParameter(f"must be RULE@N with a rule of {', '.join(RULES)}, such as fast-below-half@300, got {text!r}")
    return Watching(rule, int(episodes))


ShadowPhase = Annotated[
    Watching,
    typer.Option(
        "--shadow",
        metavar="RULE@N",
        parser=_watching,
        show_default=False,
        help="For the first N episodes this fixed rule acts and the agents watch; they are then promoted in any case.",
    ),
]
