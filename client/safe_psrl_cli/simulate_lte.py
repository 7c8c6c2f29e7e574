"""`safe-psrl simulate lte-cell`: a media-streaming LTE cell in ns-3, played by agents and by fixed rules."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, USER_MISTAKE, AsJson, Target, leave, reported_errors
from safe_psrl_cli.credentials import client_credentials

if TYPE_CHECKING:
    from safe_psrl_testbed.lte.simulation import LteSimulation

MOST_UES = 32
NETWORK_FAILED = 3


def lte_cell(
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agents are NAME-1 to NAME-M, one a UE.")] = "lte",
    ues: Annotated[int, typer.Option(metavar="M", min=1, max=MOST_UES, help="UEs that a media stream goes to.")] = 4,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Episodes of each UE and policy.")] = 400,
    shared: Annotated[bool, typer.Option("--shared", help="One agent NAME for all UEs, which learns from all.")] = False,
    method: Annotated[
        Literal["adaptive", "published", "theorem"], typer.Option(help="Of agents that do not exist yet.")
    ] = "adaptive",
    compare: Annotated[bool, typer.Option(help="Play the same cell by fixed rules as well.")] = True,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Policies that play at the same time, a process each.")
    ] = os.cpu_count() or 1,
    seed: Annotated[int, typer.Option(metavar="N", min=1, max=2**31, help="Of the network, the players and the agents.")] = 1,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what happened here, as PNG.", dir_okay=False)
    ] = None,
    patience: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds to wait for a service that is away.")] = 30.0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Stream media to the UEs of an LTE cell that is simulated in ns-3, packet by packet, and learn whom to serve fast.

    UEs walk and fade, a remote host sends a stream to each through the core network, and background traffic fills the
    cell. Every 50 ms the agent of a UE chooses its service: fast, with a guaranteed bit rate, or slow, without. State:
    media units in the playback buffer. Reward: playback does not stall. Cost: use of the fast service, at most 5 of an
    episode's 10 epochs. Fixed rules play the same cell beside it: the same walks, fading, bursts and playback.

    Takes a few minutes for 400 episodes. Ctrl-C stops after the current episodes and still tells. Needs ns-3: make lte in a
    checkout, the extra `lte` elsewhere.

    Examples:

    safe-psrl simulate lte-cell --ues 4 --episodes 400 --figure lte.png

    safe-psrl simulate lte-cell --shared --no-compare --episodes 100
    """
    from safe_psrl_cli.progress import progress_bar  # noqa: PLC0415

    simulation = _prepared(
        target, agent, episodes, ues, seed, shared=shared, method=method, compare=compare, jobs=jobs, patience=patience
    )
    from safe_psrl_testbed.lte.network_process import NetworkFailedError  # noqa: PLC0415  # prepared: it is there

    with reported_errors(target):
        try:
            with progress_bar("episodes") as progress:
                tasks = {policy: progress.add_task(policy, total=episodes) for policy in simulation.books}
                simulation.run(lambda policy: progress.advance(tasks[policy]))
        except NetworkFailedError as error:
            leave(str(error), NETWORK_FAILED)
        finally:
            summary = simulation.summary()
            if summary["episodes"]:
                _tell(summary, as_json)
    if figure is not None and summary["episodes"]:
        _draw(figure, simulation, summary)
    if summary["interrupted"]:
        raise KeyboardInterrupt


def _prepared(target: str, agent: str, episodes: int, ues: int, seed: int, **options: Any) -> "LteSimulation":
    from rich.console import Console  # noqa: PLC0415

    try:
        from safe_psrl_testbed.lte.simulation import LteSimulation  # noqa: PLC0415
    except ImportError as error:
        leave(f"the simulation needs {error.name}: pip install 'safe-psrl[lte]'", USER_MISTAKE)
    from safe_psrl_testbed.lte.bindings import Ns3MissingError  # noqa: PLC0415
    from safe_psrl_testbed.lte.settings import CellSettings  # noqa: PLC0415

    with reported_errors(target), Console(stderr=True).status("preparing agents"):
        try:
            settings = CellSettings(ues=ues, seed=seed)
            simulation = LteSimulation(settings, target, agent, episodes, **options, **client_credentials())
        except Ns3MissingError as error:
            leave(str(error), USER_MISTAKE)
        simulation.prepare()
    return simulation


def _draw(figure: Path, simulation: "LteSimulation", summary: dict[str, Any]) -> None:
    try:
        from safe_psrl_experiments.lte_figure import draw_lte_cell  # noqa: PLC0415
    except ImportError as error:
        leave(f"a figure needs {error.name}: pip install 'safe-psrl[experiments]'", USER_MISTAKE)
    typer.echo(f"wrote {draw_lte_cell(figure, simulation.books, summary)}", err=True)


def _tell(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _show(summary)


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl_cli.agent_tables import table_of  # noqa: PLC0415
    from safe_psrl_cli.policy_table import show_policies  # noqa: PLC0415

    console = Console()
    console.print(
        f"LTE cell, {summary['ues']} UEs, {len(summary['agents'])} agents: {summary['simulated_seconds']:,.0f} s of network "
        f"in {summary['seconds']:,.0f} s",
        highlight=False,
    )
    show_policies(console, summary)
    console.print(
        f"Of all episodes of one agent, constraint regret is at most {summary['agents_constraint_regret']:,.0f} now, "
        f"and was at most {summary['agents_constraint_regret_max']:,.0f} ever.",
        highlight=False,
    )
    moves = list(summary["kernel"][0]["cell"])
    table = table_of("How the network moved the buffers | how the paper has it", "service, buffer", "seen", *moves)
    for row in summary["kernel"]:
        cells = [f"{row['cell'][move]:.2f} | {row['paper'][move]:.2f}" for move in moves]
        table.add_row(f"{row['service']}, {row['buffer']}", f"{row['seen']:,}", *cells)
    console.print(table)
