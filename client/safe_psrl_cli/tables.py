"""Tables and progress bars for people, at 80 columns."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from safe_psrl_cli.connection import plain
from safe_psrl_proto.v1 import admin_pb2

MIN_NAME_WIDTH = 10


def table_of(title: str | None, name: str, *numbers: str, fold: bool = True) -> Table:
    """A table with a column of names, folded rather than cut off, and columns of numbers, which are never broken."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column(name, overflow="fold", min_width=MIN_NAME_WIDTH, no_wrap=not fold)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def add_rows(table: Table, about: Sequence[str], constraints: Sequence[tuple[str, Sequence[str]]]) -> None:
    """One row for an agent with one constraint; with several, a row for each of them below the agent's."""
    if len(constraints) == 1:
        table.add_row(*about, *constraints[0][1])
        return
    table.add_row(*about)
    for name, cells in constraints:
        table.add_row(f"  {escape(name)}", *[""] * (len(about) - 1), *cells)


def show_agents(statuses: Sequence[admin_pb2.AgentStatus]) -> None:
    if not statuses:
        Console().print("no agents; create one with: safe-psrl agent create NAME --preset streaming-buffer", highlight=False)
        return
    numbers = ("\nepisodes", "last\nreward", "last\ncost", "\nbudget", "over\nbudget", "dual\nvariable")
    table = table_of(None, "\nagent", "\ncondition", *numbers)
    for status in statuses:
        about = [escape(status.agent), condition_of(status), f"{status.episode:,}", f"{status.last_reward:.3f}"]
        add_rows(table, about, [(constraint.name, constraint_cells(constraint)) for constraint in status.constraints])
    Console().print(table)


def constraint_cells(constraint: admin_pb2.ConstraintStatus) -> list[str]:
    return [
        f"{constraint.last_cost:.3f}",
        f"{constraint.cost_budget:.4g}",
        f"{constraint.violations:,}",
        f"{constraint.dual_variable:,.2f}",
    ]


def show_agent(status: admin_pb2.AgentStatus) -> None:
    """A line for each quantity, first of the agent, then of each constraint."""
    console = Console()
    lines = agent_lines(status)
    for constraint in status.constraints:
        lines += [("", ""), ("constraint", constraint.name), *constraint_lines(constraint)]
    for label, text in lines:
        console.print(f"{label:16}{text}", highlight=False, markup=False, soft_wrap=True)


def agent_lines(status: admin_pb2.AgentStatus) -> list[tuple[str, str]]:
    created = datetime.fromtimestamp(status.created_micros / 1e6, UTC)
    reason = f" ({status.condition_reason})" if status.condition_reason else ""
    return [
        ("agent", status.agent),
        ("condition", condition_of(status) + reason),
        ("created", f"{created:%Y-%m-%d %H:%M:%S} UTC"),
        ("episodes", f"{status.episode:,} begun, {status.completed_episodes:,} completed, {len(status.open_episodes)} open"),
        ("transitions", f"{status.transitions:,}, of which {status.overridden_actions:,} not with the proposed action"),
        ("last reward", f"{status.last_reward:.6g}; {status.predicted_reward:.6g} predicted for the latest episode"),
        ("total reward", f"{status.cumulative_reward:.6g}"),
        ("visited", f"{status.visited_ratio:.1%} of the pairs of state and action"),
        ("version", f"{status.version:,} events"),
        ("state digest", status.state_digest),
    ]


def constraint_lines(constraint: admin_pb2.ConstraintStatus) -> list[tuple[str, str]]:
    return [
        ("  budget", f"{constraint.cost_budget:g}; {constraint.satisfiable_cost:g} is satisfiable"),
        ("  last cost", f"{constraint.last_cost:.6g}; {constraint.predicted_cost:.6g} predicted for the latest episode"),
        ("  over budget", f"{constraint.violations:,} episodes"),
        ("  regret", f"{constraint.constraint_regret:.6g}; never above {constraint.constraint_regret_max:.6g}"),
        ("  dual variable", f"{constraint.dual_variable:.6g}; cost price {constraint.cost_price:.6g}"),
        ("  pessimism", f"{constraint.pessimism:.6g}"),
    ]


def condition_of(status: admin_pb2.AgentStatus) -> str:
    return str(plain(status)["condition"])


LONGEST_DESCRIPTION = 20


class DoneColumn(ProgressColumn):
    """Done and total, where the total is known."""

    def __init__(self, unit: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._unit = unit

    def render(self, task: Task) -> Text:
        done = "" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f} {self._unit}"
        return Text(done, style="progress.download")


class RateColumn(ProgressColumn):
    """Per second."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, justify="right"))

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


def progress_bar(unit: str, longest_description: int = LONGEST_DESCRIPTION) -> Progress:
    """On standard error, so that standard output can be read by a script."""
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=longest_description)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        DoneColumn(unit),
        RateColumn(),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        expand=True,
    )
