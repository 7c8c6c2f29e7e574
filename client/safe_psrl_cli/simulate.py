"""`safe-psrl simulate`: environments played against the agents of a service."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from safe_psrl_cli.connection import DEFAULT_TARGET, AsJson, Target, client_credentials
from safe_psrl_cli.simulate_media import Patience, base_stations, lte_cell, run_simulation

if TYPE_CHECKING:
    from rich.progress import Progress

ENVIRONMENT = "environment"


class EnvironmentOrCommand(TyperGroup):
    """`simulate streaming-buffer …` is short for `simulate environment streaming-buffer …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [ENVIRONMENT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=EnvironmentOrCommand,
    help="""Play simulated environments against the agents of a service, and report the results.

    An environment's name may replace the command.

    Examples:

    safe-psrl simulate streaming-buffer --agent buffer --episodes 2000

    safe-psrl simulate lte-cell --ues 4 --episodes 400

    safe-psrl simulate base-stations --cells 20 --devices 300
    """,
    no_args_is_help=True,
)
app.command("lte-cell")(lte_cell)
app.command("base-stations")(base_stations)


@app.command(ENVIRONMENT)
def simulate(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            show_default=False,
            help="streaming-buffer, inventory, factored-toy, random:…, or a .toml or .json file with a specification.",
        ),
    ],
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="The agent; with --parallel, NAME-1 to NAME-M.", show_default=False)
    ],
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Episodes of each agent.")] = 1_000,
    parallel: Annotated[int, typer.Option(metavar="M", min=1, max=1_000, help="Agents that play at the same time.")] = 1,
    mode: Annotated[
        Literal["step", "stream", "local"],
        typer.Option(help="One call per step; one stream; or the policy played locally, reporting whole episodes."),
    ] = "step",
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Seed of the first agent and its environment.")] = 1,
    create: Annotated[bool, typer.Option(help="Create the agents that do not exist yet.")] = True,
    patience: Patience = 30.0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Play environments whose kernel is known, against the exact optimum.

    Ctrl-C stops after the current episodes and still reports. A restart of the service is waited for.

    Examples:

    safe-psrl simulate streaming-buffer --agent buffer --episodes 2000

    safe-psrl simulate inventory --agent shop --parallel 8 --mode local
    """
    from safe_psrl_cli.simulate_tables import show_environment  # noqa: PLC0415

    def build() -> Any:
        from safe_psrl_testbed.scenario import scenario_named  # noqa: PLC0415
        from safe_psrl_testbed.simulation import Simulation  # noqa: PLC0415

        options: dict[str, Any] = {"parallel": parallel, "mode": mode, "seed": seed, "create": create, "patience": patience}
        return Simulation(scenario_named(environment), target, agent, episodes, **options, **client_credentials())

    def play(simulation: Any, progress: "Progress") -> None:
        task = progress.add_task(environment, total=episodes * parallel)
        simulation.run(lambda: progress.advance(task))

    run_simulation(target, build, play, show_environment, as_json)
