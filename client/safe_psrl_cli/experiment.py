"""`safe-psrl experiment`: learn in a simulated environment over several seeds; write results and figures."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer


def experiment(
    environment: Annotated[
        str,
        typer.Argument(
            help="streaming-buffer, inventory, factored-toy, random:states=6,actions=3,horizon=6,seed=0, or a .toml or "
            ".json file with a specification (its kernel under `transitions`, else drawn from the prior for each seed)."
        ),
    ],
    algorithms: Annotated[str, typer.Option(help="Names, separated by commas; `list` explains them.")] = "safe-psrl",
    episodes: Annotated[int, typer.Option(help="Episodes of each run.")] = 20_000,
    seeds: Annotated[int, typer.Option(help="Runs of each algorithm, with seeds 1 to this number.")] = 4,
    out: Annotated[Path, typer.Option(help="Directory for results.csv, summary.json and the figures.")] = Path("results"),
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes to run seeds in; the numbers do not depend on it.")
    ] = os.cpu_count() or 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of an algorithm: safe-psrl.pessimism_coefficient=0.1 or =theorem."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Learn in a simulated environment over several seeds; write regrets, a summary and figures like the paper's.

    Ctrl-C stops early and still writes complete files of what was done.

    Example: safe-psrl experiment streaming-buffer --episodes 400000 --seeds 10 --out results
    """
    from safe_psrl import warm_up  # noqa: PLC0415
    from safe_psrl_cli.progress import progress_bar  # noqa: PLC0415
    from safe_psrl_experiments.algorithms import ALGORITHMS  # noqa: PLC0415
    from safe_psrl_experiments.experiment import Experiment, run_experiment  # noqa: PLC0415

    if algorithms == "list":
        for known in ALGORITHMS.values():
            typer.echo(f"{known.name:20} {known.summary}")
        return
    with progress_bar("episodes") as progress:
        task = progress.add_task("preparing kernels", total=None)
        warm_up()
        plan = Experiment(environment, _names(algorithms), episodes, seeds, _parameters(settings or []))
        out.mkdir(parents=True, exist_ok=True)
        progress.update(task, description=environment, total=plan.total_episodes)
        outcome = run_experiment(plan, out, jobs, lambda done: progress.advance(task, done))
    if outcome is None:
        raise KeyboardInterrupt
    if as_json:
        typer.echo(json.dumps(outcome.summary, indent=2))
    else:
        _show(outcome.summary, [*outcome.files, *outcome.figures])
    if outcome.summary["interrupted"]:
        raise KeyboardInterrupt


def _names(algorithms: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in algorithms.split(",") if name.strip()))


def _parameters(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`["safe-psrl.pessimism_coefficient=0.1"]` by algorithm and name."""
    from safe_psrl.documents import scalar_of  # noqa: PLC0415

    parameters: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        algorithm, dot, key = name.partition(".")
        if not (equals and dot and key):
            raise typer.BadParameter(f"write ALGORITHM.PARAMETER=VALUE, not {setting!r}", param_hint="--set")
        parameters.setdefault(algorithm, {})[key] = scalar_of(value)
    return parameters


def _show(summary: dict[str, Any], files: list[Path]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    title = f"{summary['environment']}: {summary['episodes']:,} episodes, {summary['seeds']} seeds (mean ± standard deviation)"
    table = Table(title=title, title_justify="left")
    measured = [key for key in next(iter(summary["algorithms"].values())) if key != "microseconds_per_episode"]
    for heading in ("algorithm", *(key.replace("_", " ") for key in measured), "µs/episode"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for name, values in summary["algorithms"].items():
        spreads = [f"{values[key]['mean']:,.1f} ± {values[key]['std']:,.1f}" for key in measured]
        table.add_row(name, *spreads, f"{values['microseconds_per_episode']:.1f}")
    console = Console()
    console.print(table)
    optimum, costs = summary["optimum"]["reward"], summary["optimum"]["cost"]
    console.print(
        f"Exact optimum: reward {optimum:.6f} at cost {costs if isinstance(costs, list) else f'{costs:.6f}'}.", highlight=False
    )
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
