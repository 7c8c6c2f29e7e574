"""Tables and progress bars for people, at 80 columns."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from safe_psrl_client.visible_text import visible

MIN_NAME_WIDTH = 10
LONGEST_WHOLE_NAME = 20  # longer ones may be folded


def escape(text: str) -> str:
    """For a cell or a title: neither markup nor control characters of `text` have an effect."""
    return escape_markup(visible(text))


def table_of(title: str | None, name: str, *numbers: str) -> Table:
    """A table with a column of names, and columns of numbers, which are never broken. Print it with `print_table`."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column(name, overflow="fold")
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


def print_table(table: Table, console: Console | None = None) -> None:
    """Print it within the width of the terminal: the rightmost columns are dropped, and named, rather than cut off."""
    console = console or Console(emoji=False)
    for column in table.columns:
        longest = max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).split("\n"))
        column.min_width = longest if column.no_wrap or longest <= LONGEST_WHOLE_NAME else MIN_NAME_WIDTH
    dropped: list[str] = []
    while len(table.columns) > 2 and _least_width(table) > console.width:
        dropped.insert(0, " ".join(str(table.columns.pop().header).split()))
    console.print(table)
    if dropped:
        console.print(f"A terminal wider than {console.width} columns also shows: {', '.join(dropped)}.", highlight=False)


def _least_width(table: Table) -> int:
    """A column has one more for its padding, and all but the first one for the space before it."""
    return sum((column.min_width or 0) + 2 for column in table.columns)


# --- results of `safe-psrl simulate`


def show_environment(summary: dict[str, Any]) -> None:
    """A row for each agent."""
    units = f"{summary['unit']}s"
    title = (
        f"{summary['environment']}: {summary['episodes']:,} {units} in {summary['seconds']:.1f} s "
        f"({summary['episodes_per_second']:,.0f}/s), mode {summary['mode']}"
    )
    numbers = (f"\n{units}", "mean\nreward", f"{summary['regret']}\nregret", "mean\ncost", "\nbudget", "over\nbudget")
    table = table_of(None, "\nagent", *numbers)
    for row in summary["agents"]:
        _add_totals(table, escape(row["agent"]), row)
        if "since_change" in row:
            _add_totals(table, "  since the change", row["since_change"])
    console = Console(emoji=False)
    console.print(escape(title), highlight=False)
    print_table(table, console)
    for change in summary["changes"]:
        text = f"The environment changes to {escape(change['environment'])} after {change['after_episodes']:,} {units}."
        console.print(text, highlight=False, soft_wrap=True)
    for row in summary["agents"]:
        if row["drift_detections"]:
            text = f"{escape(row['agent'])} has detected drift {row['drift_detections']:,} times."
            console.print(text, highlight=False, soft_wrap=True)
    optimum = summary["agents"][0]["optimum"]
    costs = ", ".join(f"{cost:.6f}" for cost in optimum["costs"])
    console.print(f"Exact optimum: reward {optimum['reward']:.6f} at cost {costs}.", highlight=False, soft_wrap=True)
    meaning = {
        "exact": "Regret is exact: the value of each episode's policy on the true kernel, against the optimum.",
        "realised": f"Regret is realised: the rewards of the {units}, against the optimum."
        + " --mode local reports it exactly." * (summary["unit"] == "episode"),
    }
    console.print(meaning[summary["regret"]], highlight=False)


def _add_totals(table: Table, name: str, totals: dict[str, Any]) -> None:
    about = [name, f"{totals['episodes']:,}", f"{totals['mean_reward']:.4f}", f"{totals['objective_regret']:,.1f}"]
    rows = [
        (c["name"], [f"{c['mean_cost']:.4f}", f"{c['cost_budget']:.4g}", f"{c['violations']:,}"]) for c in totals["constraints"]
    ]
    add_rows(table, about, rows)


def show_lte_cell(summary: dict[str, Any]) -> None:
    _show_policies(
        f"LTE cell, {summary['ues']} UEs, {len(summary['agents'])} agents: {summary['simulated_seconds']:,.0f} s of network "
        f"in {summary['seconds']:,.0f} s",
        summary,
    )
    if summary["joining_ues"]:
        joined, detections = summary["joining_ues"], summary["drift_detections"]
        Console(emoji=False).print(
            f"{joined} more UEs after {summary['joining_episode']} {summary['unit']}s; drift was detected {detections} times\n"
        )
    for name, verdict in summary.get("shadow", {}).get("verdicts", {}).items():
        watched = f"{summary['shadow']['episodes']:,} {summary['unit']}s of {summary['shadow']['rule']}"
        Console(emoji=False).print(
            f"{escape(name)} was promoted after {watched}; the verdict was: {verdict}\n", highlight=False
        )
    moves = list(summary["kernel"][0]["cell"])
    table = table_of("How the network moved the buffers | the paper's kernel", "service, buffer", "seen", *moves)
    for row in summary["kernel"]:
        cells = [f"{row['cell'][move]:.2f} | {row['paper'][move]:.2f}" for move in moves]
        table.add_row(f"{row['service']}, {row['buffer']}", f"{row['seen']:,}", *cells)
    print_table(table)


def show_base_stations(summary: dict[str, Any]) -> None:
    _show_policies(
        f"{summary['cells']} cells, {summary['devices']} devices, {summary['agents']} agents: {summary['steps']:,} steps in "
        f"{summary['seconds']:.1f} s ({summary['steps_per_second']:,.0f}/s), {summary['handovers']:,} handovers",
        summary,
    )
    table = table_of("Learned, by class of device", "class", "devices", "stalls of 10 epochs", "cost")
    for name, row in summary["classes"].items():
        table.add_row(name, f"{row['devices']:,}", f"{row['stalls']:.2f}", f"{row['cost']:.2f}")
    print_table(table)


def _show_policies(title: str, summary: dict[str, Any]) -> None:
    """A row for each policy, and the best fixed rule that keeps the budget."""
    unit = summary["unit"]
    numbers = (f"\n{unit}s", "stalls of\n10 epochs", "\ncost", "\nbudget", "constraint\nregret", "its\nmost")
    table = table_of(None, "\npolicy", *numbers)
    for name, policy in summary["policies"].items():
        table.add_row(
            name,
            f"{policy['episodes']:,}",
            f"{policy['stalls']:.2f}",
            f"{policy['cost']:.2f}",
            f"{summary['cost_budget']:.4g}" if policy["keeps_budget"] else "broken",
            f"{policy['constraint_regret']:,.0f}",
            f"{policy['constraint_regret_max']:,.0f}",
        )
    console = Console(highlight=False)
    console.print(title)
    print_table(table, console)
    console.print(f"Means over players and {unit}s. Constraint regret: the sum of cost less budget, of the worst player.")
    best = summary["best_fixed_within_budget"]
    if best is not None and "learned" in summary["policies"]:
        learned, fixed = summary["policies"]["learned"], summary["policies"][best]
        console.print(
            f"The best fixed rule within the budget is {best}: {fixed['stalls']:.2f} stalls against "
            f"{learned['stalls']:.2f} learned ({learned['stalls_last_half']:.2f} in the last half)."
        )
    console.print(
        f"Over all {unit}s of one agent, constraint regret is at most {summary['agents_constraint_regret']:,.0f} now, "
        f"and was at most {summary['agents_constraint_regret_max']:,.0f}."
    )


# --- progress

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
