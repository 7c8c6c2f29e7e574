"""`safe-psrl simulate`: environments played against the agents of a service."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from safe_psrl_cli.changing import MAX_UES, NO_MORE_UES, NO_SHADOW, MoreUes, ShadowPhase, Then, Walk
from safe_psrl_cli.connection import (
    DEFAULT_TARGET,
    USER_MISTAKE,
    AsJson,
    Patience,
    Target,
    client_credentials,
    complete_preset,
    connected,
    leave,
    print_json,
    reported_errors,
)

if TYPE_CHECKING:
    from rich.progress import Progress

ENVIRONMENT = "environment"
MAX_DEVICES = 1_000  # of an agent: as many episodes may it have open
NETWORK_FAILED = 3
EPOCHS = 10  # of an episode: decisions about a UE

Episodes = Annotated[int, typer.Option(metavar="N", min=1, help="Episodes of each player.")]
Method = Annotated[
    Literal["certified", "published", "theorem"],
    typer.Option(metavar="METHOD", help="The method of new agents: certified, published or theorem."),
]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the results here, as PNG.", dir_okay=False)]


class EnvironmentOrCommand(TyperGroup):
    """`simulate streaming-buffer …` is short for `simulate environment streaming-buffer …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [ENVIRONMENT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        environment = self.commands[ENVIRONMENT].params[0]
        return [*super().shell_complete(ctx, incomplete), *environment.shell_complete(ctx, incomplete)]


app = typer.Typer(
    cls=EnvironmentOrCommand,
    help="""Play simulated environments against the agents of a service, and report the results.

    `simulate ENVIRONMENT` is short for `simulate environment ENVIRONMENT`.

    Examples:

    safe-psrl simulate streaming-buffer --agent buffer --create --episodes 2000

    safe-psrl simulate lte-cell --ues 4 --episodes 400

    safe-psrl simulate base-stations --cells 20 --devices 300
    """,
    no_args_is_help=True,
)


@app.command("lte-cell")
def lte_cell(
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agents are NAME-1 to NAME-M, one per UE.")] = "lte",
    ues: Annotated[int, typer.Option(metavar="M", min=1, max=MAX_UES, help="UEs that receive a media stream.")] = 4,
    episodes: Episodes = 400,
    shared: Annotated[bool, typer.Option("--shared", help="One agent NAME for all UEs, which learns from all.")] = False,
    method: Method = "certified",
    more_ues: MoreUes = NO_MORE_UES,
    shadow: ShadowPhase = NO_SHADOW,
    continuing: Annotated[
        bool, typer.Option("--continuing", help="Play a continuing task: --episodes counts windows of 10 epochs.")
    ] = False,
    on_detect: Annotated[
        Literal["alert", "forget", "pause"],
        typer.Option(metavar="REACTION", help="What new agents do when they detect drift: alert, forget or pause."),
    ] = "alert",
    compare: Annotated[bool, typer.Option(help="Play the same cell by fixed rules as well.")] = True,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Policies that play at the same time, a process each.")
    ] = os.cpu_count() or 1,
    seed: Annotated[int, typer.Option(metavar="N", min=1, max=2**31, help="Seed of the network, players and agents.")] = 1,
    figure: Figure = None,
    patience: Patience = None,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Stream media to the UEs of an LTE cell that ns-3 simulates packet by packet, and learn which to serve fast.

    UEs move and their signals fade, a remote host sends a stream to each through the core network, and background traffic
    fills the cell. Every 50 ms the agent of a UE chooses its service: fast, with a guaranteed bit rate, or slow, without.
    State: media units in the playback buffer. Reward: playback does not stall. Cost: use of the fast service, at most 5 of an
    episode's 10 epochs. Fixed rules play the same cell for comparison: the same walks, fading, bursts and playback.

    Takes a few minutes for 400 episodes. Ctrl-C stops after the current episodes and still reports. Needs ns-3: `make lte`
    in a checkout, the extra `lte` elsewhere.

    Examples:

    safe-psrl simulate lte-cell --ues 4 --episodes 400 --figure lte.png

    safe-psrl simulate lte-cell --shared --no-compare --episodes 100

    safe-psrl simulate lte-cell --shared --episodes 600 --more-ues 2@300 --on-detect forget

    safe-psrl simulate lte-cell --shared --episodes 600 --shadow fast-below-half@300 --figure shadow.png

    safe-psrl simulate lte-cell --continuing --episodes 2000 --figure endless.png
    """
    if continuing and shared:
        raise typer.BadParameter("an agent cannot be shared in a continuing task; drop --shared", param_hint="--continuing")
    if shadow.episodes >= episodes:
        raise typer.BadParameter(f"must end before the last of {episodes} episodes", param_hint="--shadow")
    from safe_psrl_cli.tables import show_lte_cell  # noqa: PLC0415

    def build() -> Any:
        from safe_psrl_testbed.lte.settings import CellSettings  # noqa: PLC0415
        from safe_psrl_testbed.lte.simulation import LteSimulation, Shadow  # noqa: PLC0415

        epoch = more_ues.episodes * EPOCHS
        settings = CellSettings(ues=ues, seed=seed, joining_ues=more_ues.ues, joining_epoch=epoch)
        options: dict[str, Any] = {"shared": shared, "jobs": jobs, "compare": compare, "method": method, "patience": patience}
        options |= {"shadow": Shadow(*shadow) if shadow.episodes else None, "continuing": continuing, "on_detect": on_detect}
        return LteSimulation(settings, target, agent, episodes, **options, **client_credentials())

    def play(simulation: Any, progress: "Progress") -> None:
        from safe_psrl_testbed.lte.network_process import NetworkFailedError  # noqa: PLC0415

        tasks = {policy: progress.add_task(policy, total=episodes) for policy in simulation.histories}
        try:
            simulation.run(lambda policy: progress.advance(tasks[policy]))
        except NetworkFailedError as error:
            leave(str(error), NETWORK_FAILED)

    _run(target, patience, build, play, show_lte_cell, as_json, figure)


@app.command("base-stations")
def base_stations(
    agent: Annotated[str, typer.Option(metavar="NAME", help="The prefix of the agents' names.")] = "stations",
    cells: Annotated[int, typer.Option(metavar="C", min=1, max=MAX_DEVICES, help="Base stations, on a grid.")] = 20,
    devices: Annotated[
        int, typer.Option(metavar="D", min=1, max=MAX_DEVICES, help="Cameras, pedestrians and vehicles that watch media.")
    ] = 300,
    episodes: Episodes = 30,
    agents_per: Annotated[
        Literal["cell", "class", "device"], typer.Option(help="An agent for each cell, class of devices, or device.")
    ] = "cell",
    method: Method = "certified",
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Seed of the world, players and agents.")] = 1,
    figure: Figure = None,
    patience: Patience = None,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Stream media to the devices of many cells, with one agent per cell, class of devices or device.

    Devices move, are handed over to the strongest cell, and share its capacity by weights: the fast service has more. All
    devices step together over a few streams, so this is a load test as well. The problem is the streaming buffer's, with
    at most 5 fast epochs of an episode's 10. Fixed rules play the same world for comparison.

    The same seed gives the same world. Ctrl-C stops it and still reports.

    Examples:

    safe-psrl simulate base-stations --cells 20 --devices 300 --figure stations.png

    safe-psrl simulate base-stations --cells 4 --devices 40 --agents-per class
    """
    from safe_psrl_cli.tables import show_base_stations  # noqa: PLC0415

    def build() -> Any:
        from safe_psrl_testbed.base_stations.simulation import BaseStationsSimulation  # noqa: PLC0415
        from safe_psrl_testbed.base_stations.world import WorldSettings  # noqa: PLC0415

        options: dict[str, Any] = {"agents_per": agents_per, "method": method, "patience": patience}
        settings = WorldSettings(cells, devices, seed)
        return BaseStationsSimulation(settings, target, agent, episodes, **options, **client_credentials())

    def play(simulation: Any, progress: "Progress") -> None:
        task = progress.add_task("base-stations", total=episodes * devices)
        simulation.run(lambda: progress.advance(task, devices))

    _run(target, patience, build, play, show_base_stations, as_json, figure)


@app.command(ENVIRONMENT)
def simulate(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            show_default=False,
            autocompletion=complete_preset,
            help="streaming-buffer, inventory, factored-toy, continuing-buffer, random:…, or a .toml or .json file with a "
            "specification. The buffer has the parameters fast, slow and departure: streaming-buffer:departure=0.9.",
        ),
    ],
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="The agent; with --parallel, NAME-1 to NAME-M.", show_default=False)
    ],
    episodes: Annotated[
        int, typer.Option(metavar="N", min=1, help="Episodes of each agent; of a continuing task, steps.")
    ] = 1_000,
    parallel: Annotated[int, typer.Option(metavar="M", min=1, max=1_000, help="Agents that play at the same time.")] = 1,
    mode: Annotated[
        Literal["step", "stream", "local"],
        typer.Option(
            help="One call per step; one stream; or the policy played locally, reporting whole episodes, or parts of epochs."
        ),
    ] = "step",
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Seed of the first agent and its environment.")] = 1,
    create: Annotated[bool, typer.Option("--create", help="Create the agents that do not exist yet.")] = False,
    then: Then = None,
    walk: Walk = None,
    patience: Patience = None,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Play environments whose kernel is known, against the exact optimum.

    Ctrl-C stops after the current episodes and still reports. It waits while the service restarts.

    Examples:

    safe-psrl simulate streaming-buffer --agent buffer --episodes 2000

    safe-psrl simulate inventory --agent shop --create --parallel 8 --mode local

    safe-psrl simulate streaming-buffer --agent buffer --then streaming-buffer:departure=0.5@1000 --episodes 2000
    """
    from safe_psrl_cli.tables import show_environment  # noqa: PLC0415

    def build() -> Any:
        from safe_psrl_testbed.changing import changing_scenario  # noqa: PLC0415
        from safe_psrl_testbed.simulation import Simulation  # noqa: PLC0415

        options: dict[str, Any] = {"parallel": parallel, "mode": mode, "seed": seed, "create": create, "patience": patience}
        changing = changing_scenario(environment, then or (), walk, episodes)
        return Simulation(changing, target, agent, episodes, **options, **client_credentials())

    def play(simulation: Any, progress: "Progress") -> None:
        task = progress.add_task(environment, total=episodes * parallel)
        simulation.run(lambda: progress.advance(task))

    _run(target, patience, build, play, show_environment, as_json)


def _run(
    target: str,
    patience: float | None,
    build: Callable[[], Any],
    play: Callable[[Any, "Progress"], None],
    show: Callable[[dict[str, Any]], None],
    as_json: bool,
    figure: Path | None = None,
) -> None:
    """Connect, then build a simulation, prepare its agents, play, and show or draw the summary."""
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl_cli.tables import progress_bar  # noqa: PLC0415

    with connected(target, patience) as client, Console(stderr=True).status("preparing environments and agents"):
        next(client.list_agents(page_size=1), None)  # without a service, fail before kernels are loaded, which takes seconds
        try:
            simulation = build()
        except ImportError as error:
            missing = f"the simulation needs {error.name}: pip install 'safe-psrl[testbed]'"
            leave(missing if error.name else str(error), USER_MISTAKE)
        simulation.prepare()
    with reported_errors(target):
        try:
            with progress_bar(f"{simulation.unit}s") as progress:
                play(simulation, progress)
        finally:
            summary = simulation.summary()
            if summary["episodes"]:
                print_json(summary) if as_json else show(summary)
    if figure is not None and summary["episodes"] and "learned" in summary.get("policies", {}):
        try:
            from safe_psrl_experiments.media_figures import draw_media  # noqa: PLC0415

            typer.echo(f"wrote {draw_media(figure, simulation, summary)}", err=True)
        except ImportError as error:
            leave(f"a figure needs {error.name}: pip install 'safe-psrl[experiments]'", USER_MISTAKE)
    if summary["interrupted"]:
        raise KeyboardInterrupt
