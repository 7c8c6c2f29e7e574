"""`safe-psrl experiment`: learn in a simulated environment over several seeds; write results and figures."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from safe_psrl_cli.changing import Then, Walk

DEFAULT_STEPS = 100_000


def experiment(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            show_default=False,
            help="streaming-buffer, inventory, factored-toy, continuing-buffer, random:states=10,actions=3,horizon=10,seed=0, "
            "or a .toml or .json file with a specification (its kernel under `transitions`, else drawn from the prior for each "
            "seed). The buffer has the parameters fast, slow and departure: streaming-buffer:departure=0.9.",
        ),
    ],
    algorithms: Annotated[
        str, typer.Option(metavar="NAMES", help="Separated by commas, or `all`; `--algorithms list` explains them.")
    ] = "safe-psrl",
    episodes: Annotated[int, typer.Option(metavar="N", help="Episodes of each run.")] = 20_000,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="100000", help="Steps of each run of a continuing task, in place of episodes."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each algorithm, each with its own seed.")] = 4,
    first_seed: Annotated[int, typer.Option(metavar="N", help="The first run's seed; the others follow it.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for results.csv, summary.json and the figures.")] = Path(
        "results"
    ),
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Processes to run seeds in; the numbers do not depend on it.")
    ] = os.cpu_count() or 1,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on the Dask cluster of this scheduler, such as tcp://HOST:8786, instead."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME.KEY=VALUE",
            help="A parameter of an algorithm, such as safe-psrl.cap_pessimism=true or certified.drift.on_detect=forget; may "
            "be repeated.",
        ),
    ] = None,
    then: Then = None,
    walk: Walk = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of the table.")] = False,
) -> None:
    """Learn in a simulated environment over several seeds; write regrets, a summary and figures like the paper's.

    Ctrl-C stops early and still writes complete files of the results so far. The same command continues from there, also
    after a crash.

    Examples:

    safe-psrl experiment streaming-buffer --episodes 400000 --seeds 10

    safe-psrl experiment inventory --set safe-psrl.pessimism_coefficient=0.1

    safe-psrl experiment streaming-buffer:departure=0.5 --then streaming-buffer:departure=0.9@30000 --episodes 35000
    --algorithms certified --set certified.drift.on_detect=forget

    safe-psrl experiment continuing-buffer --algorithms all --steps 1000000 --seeds 10

    safe-psrl experiment inventory --algorithms certified --episodes 2000 --set certified.warm_start.episodes=1000

    pessimism_coefficient is a number, or one of published (0.05), literal (0.25) and theorem (5). The parameters of drift
    detection are drift.detect, drift.on_detect (alert, forget), drift.memory_visits, drift.false_alarm_steps and
    drift.half_life_visits.

    With warm_start.episodes=N a run begins with the counts of a log of N episodes, drawn for each seed, in which a random
    policy acted. warm_start.weight is the weight of its rows, warm_start.environment the environment of the log.
    """
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl import warm_up_simulation  # noqa: PLC0415
    from safe_psrl_cli.tables import progress_bar  # noqa: PLC0415
    from safe_psrl_experiments.algorithms import ALGORITHMS, algorithms_named  # noqa: PLC0415
    from safe_psrl_experiments.experiment import Experiment, run_experiment  # noqa: PLC0415
    from safe_psrl_experiments.results import in_units, unit_of  # noqa: PLC0415
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    if algorithms == "list":
        for known in ALGORITHMS.values():
            told = f"; also given to it: {known.told}" if known.told else ""
            typer.echo(f"{known.name:20} {known.summary}{told}")
        return
    parameters = _parameters(settings or [])
    with Console(stderr=True).status("preparing kernels (about half a minute the first time)"):
        continuing = scenario_named(environment).spec.is_continuing
        if steps is not None and not continuing:
            raise typer.BadParameter(f"are for continuing tasks; {environment} has --episodes", param_hint="--steps")
        length = (DEFAULT_STEPS if steps is None else steps) if continuing else episodes
        names = algorithms_named(algorithms, continuing=continuing)
        plan = Experiment(environment, names, length, seeds, parameters, tuple(then or ()), walk, first_seed)
        out.mkdir(parents=True, exist_ok=True)
        warm_up_simulation()
    with progress_bar(unit_of(plan.spec) + "s") as progress:
        task = progress.add_task(environment, total=plan.total_episodes)
        outcome = run_experiment(plan, out, jobs, lambda done: progress.advance(task, done), scheduler)
        if outcome is not None and not outcome.summary["interrupted"]:
            progress.update(task, completed=plan.total_episodes)  # the last reports may not have arrived
    if outcome is None:
        raise KeyboardInterrupt
    if as_json:
        typer.echo(json.dumps(in_units(plan.spec, outcome.summary), indent=2))
    else:
        _show(outcome.summary, plan.spec.constraint_names, unit_of(plan.spec), [*outcome.files, *outcome.figures])
    if outcome.summary["interrupted"]:
        raise KeyboardInterrupt


def _parameters(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`["safe-psrl.pessimism_coefficient=0.1"]` by algorithm and name."""
    from safe_psrl.problem.documents import scalar_of  # noqa: PLC0415

    parameters: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        algorithm, dot, key = name.partition(".")
        if not (equals and dot and key):
            raise typer.BadParameter(f"write ALGORITHM.PARAMETER=VALUE, not {setting!r}", param_hint="--set")
        parameters.setdefault(algorithm, {})[key] = scalar_of(value)
    return parameters


def _show(summary: dict[str, Any], constraints: tuple[str, ...], unit: str, files: list[Path]) -> None:
    """A row for each algorithm, and below it one for each of its constraints if there are several."""
    from rich.console import Console  # noqa: PLC0415

    from safe_psrl_cli.tables import escape, print_table, table_of  # noqa: PLC0415

    several = len(constraints) > 1
    title = f"{summary['environment']}: {summary['episodes']:,} {unit}s, {summary['seeds']} seeds (mean ± standard deviation)"
    numbers = (
        "objective\nregret",
        "constraint\nregret",
        "its\ngreatest",
        "strong\nviolation",
        "over\nbudget",
        f"µs per\n{unit}",
    )
    table = table_of(None, "algorithm", *numbers)
    for name, values in summary["algorithms"].items():
        keys = ("constraint_regret", "constraint_regret_max", "strong_violation")
        table.add_row(
            name,
            _spread(values["objective_regret"]),
            *([""] * len(keys) if several else [_spread(values[key]) for key in keys]),
            _spread(values["violating_episodes"]),
            f"{values['microseconds_per_episode']:.1f}",
        )
        for constraint in constraints if several else ():
            table.add_row(f"  {escape(constraint)}", "", *(_spread(values[f"{key}.{constraint}"]) for key in keys))
    console = Console()
    console.print(title, highlight=False)
    print_table(table, console)
    _show_drift(summary, several, console)
    costs = summary["optimum"]["cost"]
    shown = ", ".join(f"{cost:.6f}" for cost in (costs if several else [costs]))
    first = " of the first world" if "changes" in summary or "walk" in summary else ""
    console.print(f"Exact optimum{first}: reward {summary['optimum']['reward']:.6f} at cost {shown}.", highlight=False)
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _show_drift(summary: dict[str, Any], several: bool, console: Any) -> None:
    """Before and since the last change of the world, and how often drift was detected."""
    from safe_psrl_cli.tables import print_table, table_of  # noqa: PLC0415

    changed = {name: values for name, values in summary["algorithms"].items() if "since_change" in values}
    if changed:
        after = next(iter(changed.values()))["before_change"]["episodes"]
        environment = next(one["environment"] for one in summary["changes"] if one["after_episodes"] == after)
        console.print(f"Before and since the change to {environment} after {after:,} episodes:", highlight=False)
        numbers = (
            "objective\nregret",
            "constraint\nregret",
            "strong\nviolation",
            "priced\nregret",
            "episodes\nover budget",
            "detections\nof drift",
        )
        table = table_of(None, "algorithm", *numbers)
        keys = (
            "objective_regret",
            "constraint_regret",
            "strong_violation",
            "priced_regret",
            "violating_episodes",
            "detections",
        )
        for name, values in changed.items():
            for title, part in ((f"{name}: before", values["before_change"]), ("  since", values["since_change"])):
                table.add_row(title, *("" if several and key not in part else _spread(part[key]) for key in keys))
        print_table(table, console)
    for name, values in summary["algorithms"].items():
        found = values["detections"]["per_seed"]
        delay = values.get("since_change", {}).get("detection_delay", {}).get("median")
        if any(found):
            detected = f"{name} detected drift {sum(found):,} times, in {sum(map(bool, found))} of {len(found)} runs"
            since = "" if delay is None else f"; first after the change in {delay:,.0f} episodes (median)"
            console.print(f"{detected}{since}.", highlight=False)


def _spread(values: dict[str, Any]) -> str:
    return f"{_number(values['mean'])} ± {_number(values['std'])}"


def _number(value: float) -> str:
    """At most six characters, so that a row fits a narrow terminal."""
    for size, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.{2 if unit == 'M' else 1}f}{unit}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
