"""`safe-psrl bench`: speed against a limit measured in the same run."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave

if TYPE_CHECKING:
    from safe_psrl_cli.child_process import ServerProcess
    from safe_psrl_experiments.bench.measure import Report, Result

MISSED = 1
LONGEST_NAME = 44  # of what is measured, beside the progress bar

app = typer.Typer(
    help="""Benchmark against limits that are measured in the same run. Exit code 1 if a target is missed.

    Example: safe-psrl bench learn --json learn.json
    """,
    no_args_is_help=True,
)
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the results to this file.", dir_okay=False)
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the results here (.png, .svg, .pdf).", dir_okay=False)]
Rounds = Annotated[int, typer.Option(metavar="N", min=1, help="Measurements of each quantity, in turn; medians are shown.")]


@app.command("learn")
def learn(json_file: JsonFile = None, rounds: Rounds = 15) -> None:
    """Simulated episodes: Safe PSRL against plain numpy and bare gamma draws, DOPE and OptCMDP against an LP solver.

    Also the time of learning from a step, with and without drift detection.

    Example: safe-psrl bench learn --json learn.json
    """
    from safe_psrl_experiments.bench.learn import bench_learn  # noqa: PLC0415

    _run(lambda report: bench_learn(rounds, report), json_file)


@app.command("plan")
def plan(json_file: JsonFile = None, rounds: Rounds = 15, plot: Plot = None) -> None:
    """Episode starts with 10 to 20,000 states: planning against BLAS, sampling against numpy's gamma draws.

    Example: safe-psrl bench plan --rounds 5 --plot growth.png
    """
    from safe_psrl_experiments.bench.figures import draw_growth  # noqa: PLC0415
    from safe_psrl_experiments.bench.plan import bench_plan  # noqa: PLC0415

    _run(lambda report: bench_plan(rounds, report), json_file, plot, draw_growth)


@app.command("grow")
def grow(
    json_file: JsonFile = None,
    agents: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Number of agents.")] = 10_000,
    active: Annotated[int, typer.Option(metavar="N", min=1, max=2_500, help="Agents that play concurrently.")] = 1_000,
    transitions: Annotated[int, typer.Option(metavar="N", min=1_000, help="Length of the history.")] = 1_000_000,
) -> None:
    """Scale: a service with many agents (memory, start, stop, play), and an agent with a long history (size, load).

    Example: safe-psrl bench grow --json grow.json
    """
    from safe_psrl_experiments.bench.grow import FleetSize, bench_fleet  # noqa: PLC0415
    from safe_psrl_experiments.bench.history import bench_history  # noqa: PLC0415

    def bench(report: "Report") -> "list[Result]":
        with _service() as server:
            fleet = bench_fleet(server, FleetSize(agents, min(active, agents), min(10, agents)), report)
            return fleet + bench_history(server.directory, transitions, report)

    _run(bench, json_file)


@app.command("fleet")
def fleet(
    json_file: JsonFile = None,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="STORE",
            help="An empty database, or one of an earlier run. Unset: a new SQLite store.",
        ),
    ] = "",
    agents: Annotated[int, typer.Option(metavar="N", min=1, max=9_999_999, help="Agents that are stored.")] = 200_000,
    resident: Annotated[int, typer.Option(metavar="N", min=1, help="Agents that fit into memory.")] = 1_000,
    transitions: Annotated[int, typer.Option(metavar="N", min=1, help="Steps in the history of each agent.")] = 40,
) -> None:
    """More agents than fit into memory: start, memory, first call to an agent, lists, metrics.

    Example: safe-psrl bench fleet --agents 20000 --json fleet.json
    """
    from safe_psrl_experiments.bench.fleet import LargeFleet, bench_large_fleet  # noqa: PLC0415
    from safe_psrl_server.store import StoreError  # noqa: PLC0415

    size = LargeFleet(agents, resident, transitions)

    def bench(report: "Report") -> "list[Result]":
        with _service() as empty, _service(store, size.settings) as server:
            return bench_large_fleet(server, empty, server.store, size, report)

    try:
        _run(bench, json_file)
    except StoreError as error:
        leave(str(error), USER_MISTAKE)


@app.command("serve")
def serve(
    json_file: JsonFile = None,
    rounds: Rounds = 15,
    pin: Annotated[bool, typer.Option("--pin", help="Pin servers to the first core and clients to the last.")] = False,
    beside: Annotated[
        int, typer.Option(metavar="N", min=0, help="Busy processes beside the measured ones, for service and echo alike.")
    ] = 0,
    plot: Plot = None,
) -> None:
    """Latency and throughput of calls (step, stream, episode, action), against a gRPC server that only echoes.

    With --beside: a single step and 64 concurrent ones, against an echo with one durable write.

    Example: safe-psrl bench serve --json serve.json
    """
    from safe_psrl_experiments.bench.figures import draw_serve  # noqa: PLC0415
    from safe_psrl_experiments.bench.serve import Setting, bench_serve  # noqa: PLC0415

    def bench(report: "Report") -> "list[Result]":
        with _started_service(report) as server:
            return bench_serve(server, Setting(rounds, pin, beside), report)

    _run(bench, json_file, plot, draw_serve)


@app.command("page")
def page(
    markdown: Annotated[Path, typer.Argument(help="The page, such as docs/performance.md.", exists=True, dir_okay=False)],
    results: Annotated[
        list[Path],
        typer.Argument(help="Files written with --json and named after the benchmark: serve.json.", exists=True),
    ],
) -> None:
    """Replace the tables of a Markdown page with measured results.

    Example: safe-psrl bench page docs/performance.md serve.json plan.json
    """
    from safe_psrl_experiments.bench.measure import fill_page  # noqa: PLC0415

    text = markdown.read_text(encoding="utf-8")
    for file in results:
        try:
            text = fill_page(text, file.stem, json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            leave(f"{file} does not fit into {markdown}: {error}", USER_MISTAKE)
    markdown.write_text(text, encoding="utf-8")


@app.command("scrape")
def scrape(json_file: JsonFile = None, rounds: Rounds = 15) -> None:
    """Metrics of 1,000 agents: the time of a scrape, and latency of calls with and without a scrape every second.

    Example: safe-psrl bench scrape --json scrape.json
    """
    from safe_psrl_experiments.bench.scrape import bench_scrape  # noqa: PLC0415

    def bench(report: "Report") -> "list[Result]":
        with _started_service(report) as server:
            return bench_scrape(server.target, server.metrics_url, rounds, report)

    _run(bench, json_file)


@app.command("store")
def store(
    address: Annotated[str, typer.Option("--store", metavar="STORE", help="A database: postgresql://HOST/DATABASE.")],
    json_file: JsonFile = None,
    rounds: Rounds = 5,
) -> None:
    """PostgreSQL: appends of events, against bare inserts of as many rows. Uses a temporary schema.

    Example: safe-psrl bench store --store postgresql://localhost/test
    """
    from psycopg import Error  # noqa: PLC0415

    from safe_psrl_experiments.bench.store import bench_store  # noqa: PLC0415

    try:
        _run(lambda report: bench_store(address, rounds, report), json_file)
    except Error as error:
        leave(str(error), USER_MISTAKE)


@contextmanager
def _service(store: str = "", settings: str = "") -> Iterator["ServerProcess"]:
    """A service with this store, or an empty one, not started yet."""
    from safe_psrl_cli.child_process import ServerProcess  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="safe-psrl-bench-") as directory:
        server = ServerProcess(Path(directory), store=store, settings=settings)
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def _started_service(report: "Report") -> Iterator["ServerProcess"]:
    with _service() as server:
        report("starting a service")
        server.start()
        yield server


def _run(
    bench: Callable[["Report"], "list[Result]"],
    json_file: Path | None,
    plot: Path | None = None,
    draw: Callable[[Path, "list[Result]"], object] | None = None,
) -> None:
    from safe_psrl import warm_up, warm_up_simulation  # noqa: PLC0415
    from safe_psrl_cli.tables import progress_bar  # noqa: PLC0415
    from safe_psrl_experiments.bench.measure import as_json  # noqa: PLC0415

    with progress_bar("turns", LONGEST_NAME) as progress:
        task = progress.add_task("preparing kernels", total=None)
        warm_up()
        warm_up_simulation()
        results = bench(lambda what, done=0, total=None: progress.update(task, description=what, completed=done, total=total))
        if draw is not None and plot is not None:
            draw(plot, results)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(as_json(results), indent=2) + "\n", encoding="utf-8")
    _show(results)
    if not all(result.ok for result in results):
        raise typer.Exit(MISSED)


def _show(results: "list[Result]") -> None:
    from safe_psrl_cli.tables import print_table, table_of  # noqa: PLC0415

    table = table_of(None, "measured, and below it the limit", "", "ratio", "bar")
    for result in results:
        verdict = "" if result.bar is None else f"{result.bar} {'met' if result.ok else 'MISSED'}"
        table.add_row(result.name, f"{result.value:,.1f} {result.unit}", f"{result.ratio:.2f}", verdict)
        table.add_row(f"  {result.limit_name}", f"{result.limit:,.1f} {result.unit}", "", "")
    print_table(table)
