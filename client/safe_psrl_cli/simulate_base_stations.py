"""`safe-psrl simulate base-stations`: many cells and devices, cheaply simulated, whose agents step all at once."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, USER_MISTAKE, AsJson, Target, leave, reported_errors
from safe_psrl_cli.credentials import client_credentials

if TYPE_CHECKING:
    from safe_psrl_testbed.base_stations.simulation import BaseStationsSimulation

MOST = 1_000  # cells, and devices: so many episodes may an agent have open


def base_stations(
    agent: Annotated[str, typer.Option(metavar="NAME", help="What the names of the agents begin with.")] = "stations",
    cells: Annotated[int, typer.Option(metavar="C", min=1, max=MOST, help="Base stations, on a grid.")] = 20,
    devices: Annotated[
        int, typer.Option(metavar="D", min=1, max=MOST, help="Cameras, pedestrians and vehicles that watch media.")
    ] = 300,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Episodes of each device.")] = 30,
    agents_per: Annotated[Literal["cell", "class", "device"], typer.Option(help="Who has an agent of its own.")] = "cell",
    method: Annotated[
        Literal["adaptive", "published", "theorem"], typer.Option(help="Of agents that do not exist yet.")
    ] = "adaptive",
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Of the world, the players and the agents.")] = 1,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what happened here, as PNG.", dir_okay=False)
    ] = None,
    patience: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds to wait for a service that is away.")] = 30.0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Stream media to the devices of many cells, with an agent a cell, a class of devices or a device.

    Devices move, are handed over to the strongest cell, and share its capacity by weights: the fast service has more. All
    devices step at once, over a few streams: this is for load as well. The problem is that of the streaming buffer, with
    at most 5 fast epochs of an episode's 10. Fixed rules play the same world beside it.

    The same seed gives the same world. Ctrl-C stops it and still tells.

    Examples:

    safe-psrl simulate base-stations --cells 20 --devices 300 --figure stations.png

    safe-psrl simulate base-stations --cells 4 --devices 40 --agents-per class
    """
    from safe_psrl_cli.progress import progress_bar  # noqa: PLC0415

    simulation = _prepared(
        target, agent, episodes, cells, devices, seed, agents_per=agents_per, method=method, patience=patience
    )
    with reported_errors(target):
        try:
            with progress_bar("episodes") as progress:
                task = progress.add_task("base-stations", total=episodes * devices)
                simulation.run(lambda: progress.advance(task, devices))
        finally:
            summary = simulation.summary()
            if summary["episodes"]:
                _tell(summary, as_json)
    if figure is not None and summary["episodes"]:
        _draw(figure, simulation, summary)
    if summary["interrupted"]:
        raise KeyboardInterrupt


def _prepared(
    target: str, agent: str, episodes: int, cells: int, devices: int, seed: int, **options: Any
) -> "BaseStationsSimulation":
    from rich.console import Console  # noqa: PLC0415

    try:
        from safe_psrl_testbed.base_stations.simulation import BaseStationsSimulation  # noqa: PLC0415
        from safe_psrl_testbed.base_stations.world import WorldSettings  # noqa: PLC0415
    except ImportError as error:
        leave(f"the simulation needs {error.name}: pip install 'safe-psrl[testbed]'", USER_MISTAKE)

    with reported_errors(target), Console(stderr=True).status("preparing agents"):
        settings = WorldSettings(cells, devices, seed)
        simulation = BaseStationsSimulation(settings, target, agent, episodes, **options, **client_credentials())
        simulation.prepare()
    return simulation


def _draw(figure: Path, simulation: "BaseStationsSimulation", summary: dict[str, Any]) -> None:
    try:
        from safe_psrl_experiments.base_stations_figure import draw_base_stations  # noqa: PLC0415
    except ImportError as error:
        leave(f"a figure needs {error.name}: pip install 'safe-psrl[experiments]'", USER_MISTAKE)
    typer.echo(f"wrote {draw_base_stations(figure, simulation, summary)}", err=True)


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
        f"{summary['cells']} cells, {summary['devices']} devices, {summary['agents']} agents: {summary['steps']:,} steps in "
        f"{summary['seconds']:.1f} s ({summary['steps_per_second']:,.0f}/s), {summary['handovers']:,} handovers",
        highlight=False,
    )
    show_policies(console, summary)
    console.print(
        f"Of all episodes of one agent, constraint regret is at most {summary['agents_constraint_regret']:,.0f} now, "
        f"and was at most {summary['agents_constraint_regret_max']:,.0f} ever.",
        highlight=False,
    )
    table = table_of("Learned, by class of device", "class", "devices", "stalls of 10 epochs", "cost")
    for name, row in summary["classes"].items():
        table.add_row(name, f"{row['devices']:,}", f"{row['stalls']:.2f}", f"{row['cost']:.2f}")
    console.print(table)
