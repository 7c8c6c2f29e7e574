"""`safe-psrl simulate`: environments played against the agents of a service."""

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from safe_psrl_cli.connection import DEFAULT_TARGET, AsJson, Target, print_json, reported_errors
from safe_psrl_cli.credentials import client_credentials
from safe_psrl_cli.simulate_media import Patience, base_stations, lte_cell

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
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl_cli.progress import progress_bar  # noqa: PLC0415
    from safe_psrl_testbed.scenario import scenario_named  # noqa: PLC0415
    from safe_psrl_testbed.simulation import Simulation  # noqa: PLC0415

    with reported_errors(target), Console(stderr=True).status("preparing environments and agents"):
        simulation = Simulation(
            scenario_named(environment),
            target,
            agent,
            episodes,
            parallel=parallel,
            mode=mode,
            seed=seed,
            patience=patience,
            **client_credentials(),
        )
        simulation.prepare(create=create)
    with reported_errors(target):
        try:
            with progress_bar("episodes") as progress:
                task = progress.add_task(environment, total=episodes * parallel)
                simulation.run(lambda: progress.advance(task))
        finally:
            summary = simulation.summary()
            if summary["episodes"]:
                print_json(summary) if as_json else _show(summary)
    if summary["interrupted"]:
        raise KeyboardInterrupt


def _show(summary: dict[str, Any]) -> None:
    """A row for each agent."""
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    from safe_psrl_cli.tables import add_rows, table_of  # noqa: PLC0415

    title = (
        f"{summary['environment']}: {summary['episodes']:,} episodes in {summary['seconds']:.1f} s "
        f"({summary['episodes_per_second']:,.0f}/s), mode {summary['mode']}"
    )
    numbers = ("\nepisodes", "mean\nreward", f"{summary['regret']}\nregret", "mean\ncost", "\nbudget", "over\nbudget")
    table = table_of(escape(title), "\nagent", *numbers, "dual\nvariable")
    for row in summary["agents"]:
        about = [escape(row["agent"]), f"{row['episodes']:,}", f"{row['mean_reward']:.4f}", f"{row['objective_regret']:,.1f}"]
        add_rows(table, about, [(constraint["name"], _cells(constraint)) for constraint in row["constraints"]])
    console = Console()
    console.print(table)
    optimum = summary["agents"][0]["optimum"]
    costs = ", ".join(f"{cost:.6f}" for cost in optimum["costs"])
    console.print(f"Exact optimum: reward {optimum['reward']:.6f} at cost {costs}.", highlight=False, soft_wrap=True)
    meaning = {
        "exact": "Regret is exact: the value of each episode's policy on the true kernel, against the optimum.",
        "realised": "Regret is realised: the rewards of the episodes, against the optimum; --mode local reports it exactly.",
    }
    console.print(meaning[summary["regret"]], highlight=False)


def _cells(constraint: dict[str, Any]) -> list[str]:
    dual = constraint["dual_variable"]
    return [
        f"{constraint['mean_cost']:.4f}",
        f"{constraint['cost_budget']:.4g}",
        f"{constraint['violations']:,}",
        "?" if dual is None else f"{dual:,.2f}",
    ]
