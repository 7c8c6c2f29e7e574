"""Agents' status for people to read."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from safe_psrl_cli.connection import plain
from safe_psrl_proto.v1 import admin_pb2

COSTS = ("last\ncost", "\nbudget", "episodes\nover budget", "dual\nvariable")
LEAST_NAME_WIDTH = 10


def show_list(statuses: Sequence[admin_pb2.AgentStatus]) -> None:
    """A row for each agent and constraint; what is the agent's stands in its first row."""
    if not statuses:
        Console().print("no agents; safe-psrl agent create NAME --preset streaming-buffer makes one", highlight=False)
        return
    several = any(len(status.constraints) > 1 for status in statuses)
    table = _table("\nagent", "\ncondition", *(["\nconstraint"] if several else []))
    _add_numbers(table, "\nepisodes", "last\nreward", *COSTS)
    for status in statuses:
        about = [escape(status.agent), condition_of(status)]
        sums = [f"{status.episode:,}", f"{status.last_reward:.3f}"]
        for constraint in status.constraints or [admin_pb2.ConstraintStatus()]:
            table.add_row(*about, *([escape(constraint.name)] if several else []), *sums, *constraint_cells(constraint))
            about, sums = ["", ""], ["", ""]
    Console().print(table)


def show_status(status: admin_pb2.AgentStatus) -> None:
    console = Console()
    created = datetime.fromtimestamp(status.created_micros / 1e6, UTC)
    reason = f" ({status.condition_reason})" if status.condition_reason else ""
    lines = {
        "agent": status.agent,
        "condition": condition_of(status) + reason,
        "created": f"{created:%Y-%m-%d %H:%M:%S} UTC",
        "episodes": f"{status.episode:,} begun, {status.completed_episodes:,} completed, {len(status.open_episodes)} open",
        "transitions": f"{status.transitions:,}, of which {status.overridden_actions:,} not with the proposed action",
        "last reward": f"{status.last_reward:.6g} ({status.predicted_reward:.6g} predicted for the latest episode)",
        "total reward": f"{status.cumulative_reward:.6g}",
        "visited": f"{status.visited_ratio:.1%} of the pairs of state and action",
        "version": f"{status.version:,} events",
        "state digest": status.state_digest,
    }
    for label, text in lines.items():
        console.print(f"{label:14}{text}", highlight=False, markup=False, soft_wrap=True)
    table = _table("\nconstraint")
    _add_numbers(table, *COSTS, "predicted\ncost", "\npessimism", "constraint\nregret")
    for constraint in status.constraints:
        more = [f"{constraint.predicted_cost:.3f}", f"{constraint.pessimism:.4g}", f"{constraint.constraint_regret:,.1f}"]
        table.add_row(escape(constraint.name), *constraint_cells(constraint), *more)
    console.print(table)


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in names:
        table.add_column(heading, overflow="fold", min_width=LEAST_NAME_WIDTH)
    return table


def _add_numbers(table: Table, *headings: str) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def constraint_cells(constraint: admin_pb2.ConstraintStatus) -> list[str]:
    return [
        f"{constraint.last_cost:.3f}",
        f"{constraint.cost_budget:g}",
        f"{constraint.violations:,}",
        f"{constraint.dual_variable:.3f}",
    ]


def condition_of(status: admin_pb2.AgentStatus) -> str:
    return str(plain(status)["condition"])
