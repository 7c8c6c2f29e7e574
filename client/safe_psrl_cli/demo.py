"""`safe-psrl demo`: the service, a simulator, a crash halfway, and a check that nothing was lost."""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave
from safe_psrl_cli.demo_history import METHOD

if TYPE_CHECKING:
    from safe_psrl_cli.child_process import ConsoleProcess

LOST = 1
INTERRUPTED = 130
NEEDED = ("numba", "matplotlib")


def demo(
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds that the simulator plays.")] = 45.0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the figure and summary.json.", file_okay=False)
    ] = Path("demo-results"),
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data directory; a temporary one by default.", file_okay=False)
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running at the end.")] = False,
    with_console: Annotated[bool, typer.Option("--console/--no-console", help="Show it live on a web page.")] = True,
) -> None:
    """Start the service, learn the paper's streaming buffer through it, kill it halfway, and continue.

    The server is a separate process with an embedded store; the simulator plays over gRPC. Halfway, the server is killed
    with SIGKILL and started again. At the end the posterior is compared with what was acknowledged, and with a run that
    was never interrupted. Exit code 1 if anything acknowledged was lost. Meanwhile the console shows it live: its address
    is printed.

    Example: safe-psrl demo --seconds 20
    """
    for module in NEEDED:
        if find_spec(module) is None:
            leave(f"the demo needs {module}: pip install 'safe-psrl[demo]'", USER_MISTAKE)

    from rich.console import Console  # noqa: PLC0415

    from safe_psrl_cli.child_process import ConsoleProcess, ServerProcess  # noqa: PLC0415

    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(store or Path(tempfile.mkdtemp(prefix="safe-psrl-demo-")), warm_up=METHOD)
    console.print("Starting the service: 2 s; the first time about 45 s more, to compile its kernels …", highlight=False)
    took = server.start()
    console.print(
        f"The service is up after {took:.1f} s: gRPC on {server.target}, metrics on {server.metrics_url}", highlight=False
    )
    page = ConsoleProcess(server.target, server.directory / "console.log")
    try:
        if with_console:
            console.print("Starting the live page: 5 s …", highlight=False)
            console.print(_console_line(page), highlight=False, soft_wrap=True)
        from safe_psrl_cli.demo_play import DemoPlay  # noqa: PLC0415  # numba loads slowly: the service starts first

        play = DemoPlay(server, console)
        console.print(f"Learning for {seconds:g} s; halfway the server is killed …", highlight=False)
        interrupted = play.run(seconds)
        console.print("Comparing with a run that was never interrupted, and drawing: about 15 s …", highlight=False)
        summary = play.summary()
    finally:
        page.stop()
        code = 0 if keep else server.stop()
    _report(console, summary, play.write(out, summary))
    if keep:
        line = (
            f"The service keeps running as process {server.pid}, its data in {server.directory}; to stop it: kill {server.pid}"
        )
        console.print(line, highlight=False, soft_wrap=True)
        console.print(f"To look at it: safe-psrl console --target {server.target}", highlight=False, soft_wrap=True)
    if code != 0:
        console.print(f"The server did not stop cleanly (exit code {code}); its log is {server.log}", soft_wrap=True)
    if code != 0 or not summary["nothing_lost"]:
        raise typer.Exit(LOST)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _console_line(page: "ConsoleProcess") -> str:
    try:
        return f"Watch it live at {page.start()}"
    except RuntimeError as error:
        return f"There is no live page: {error}"


def _report(console: Any, summary: dict[str, Any], files: list[Path]) -> None:
    from rich.table import Table  # noqa: PLC0415

    table = Table(title="Results", title_justify="left", show_header=False)
    table.add_row(
        "episodes, steps", f"{summary['episodes']:,}, {summary['transitions']:,}: {summary['steps_per_second']:,.0f} steps/s"
    )
    cost, error = summary["recent_cost"], summary["recent_cost_error"]
    table.add_row("recent cost", f"{cost:.2f} ± {error:.2f} of a budget of {summary['cost_budget']:g}")
    table.add_row("recent reward", f"{summary['recent_reward']:.2f}; the optimum has {summary['optimum_reward']:.2f}")
    table.add_row(
        "constraint regret", f"{summary['constraint_regret']:,.1f} (never above {summary['constraint_regret_max']:.1f})"
    )
    table.add_row("safety margin", f"{summary['safety_margin']:.2f} between the expected cost and the budget")
    if summary["killed_at_episode"]:
        outage = f"after episode {summary['killed_at_episode']:,}; {summary['outage_seconds']:.2f} s until it answered again"
        table.add_row("killed with SIGKILL", outage)
    table.add_row(
        "acknowledged and stored", "the same, each exactly once" if summary["nothing_lost"] else "[red]DIFFERENT[/red]"
    )
    same = "the same counts" if summary["equals_uninterrupted"] else "[red]DIFFERENT[/red]"
    table.add_row("an uninterrupted run", same)
    console.print(table)
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
