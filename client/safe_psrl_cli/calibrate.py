"""`safe-psrl calibrate`: the share of episodes above the budget against the confidence of certified plans."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from safe_psrl_experiments.calibration import Outcome


def calibrate(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            help="streaming-buffer, inventory, factored-toy, random:states=10,actions=3,horizon=10,seed=0, or a .toml or "
            ".json file with a specification. Its own kernel is not used.",
        ),
    ] = "streaming-buffer",
    confidences: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Separated by commas, each above 0.5 and below 1.")
    ] = "0.9,0.95,0.98,0.99",
    kernels: Annotated[
        int, typer.Option(metavar="N", help="Kernels drawn from the prior, the same for each confidence.")
    ] = 200,
    episodes: Annotated[int, typer.Option(metavar="N", help="Episodes of each kernel.")] = 2_000,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the results and the figure.")] = Path("calibration"),
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Processes to run kernels in; the numbers do not depend on it.")
    ] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of the table.")] = False,
) -> None:
    """Measure how often certified plans exceed their budget, on kernels drawn from the prior, against 1 - confidence.

    A confidence of 0.98 allows 2 % of all episodes an expected cost above the budget, on average over the prior. The
    table has the share that was observed and its standard error over kernels; `within` means at most what is allowed, up
    to that error. Expected costs are exact, on the kernel that was drawn.

    Writes calibration.json, calibration.md and calibration.png. The defaults take ten minutes on one core. Ctrl-C stops
    early and writes what is finished; the same command continues from there.

    Examples:

    safe-psrl calibrate

    safe-psrl calibrate inventory --confidences 0.95 --kernels 20 --episodes 200
    """
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl import warm_up_simulation  # noqa: PLC0415
    from safe_psrl_cli.tables import progress_bar  # noqa: PLC0415
    from safe_psrl_experiments.calibration import Calibration, run_calibration  # noqa: PLC0415

    with Console(stderr=True).status("preparing kernels (about half a minute the first time)"):
        plan = Calibration(environment, _numbers(confidences), kernels, episodes)
        out.mkdir(parents=True, exist_ok=True)
        warm_up_simulation()
    with progress_bar("episodes") as progress:
        task = progress.add_task(environment, total=plan.total_episodes)
        outcome = run_calibration(plan, out, jobs, lambda done: progress.advance(task, done))
        if outcome is not None and not outcome.summary["interrupted"]:
            progress.update(task, completed=plan.total_episodes)  # the last reports may not have arrived
    if outcome is None:
        raise KeyboardInterrupt
    if as_json:
        typer.echo(json.dumps(outcome.summary, indent=2))
    else:
        _show(outcome)
    if outcome.summary["interrupted"]:
        raise KeyboardInterrupt


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"write numbers separated by commas, not {text!r}", param_hint="--confidences") from None


def _show(outcome: "Outcome") -> None:
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl_cli.tables import print_table, table_of  # noqa: PLC0415
    from safe_psrl_experiments.calibration import caption_of  # noqa: PLC0415

    table = table_of(
        None, "confidence", "allowed\nshare", "episodes\nabove budget", "standard\nerror", "kernels\nwith any", "\n"
    )
    for level in outcome.summary["levels"]:
        table.add_row(*_cells(level))
    console = Console()
    console.print(caption_of(outcome.summary), highlight=False)
    print_table(table, console)
    for path in outcome.files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _cells(level: dict[str, Any]) -> list[str]:
    return [
        f"{level['confidence']:g}",
        f"{level['allowed']:.2%}",
        f"{level['share']:.2%}",
        f"{level['standard_error']:.2%}",
        f"{level['kernels_above']} of {level['kernels']}",
        "within" if level["within"] else "above",
    ]
