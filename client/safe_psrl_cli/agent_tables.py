"""Agents' status for people to read."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from safe_psrl_cli.connection import plain
from safe_psrl_proto.v1 import admin_pb2

NUMBERS = ("episodes", "reward", "cost", "budget", "regret", "over budget", "dual variable")


def show_list(statuses: Sequence[admin_pb2.AgentStatus]) -> None:
    """A row for each agent and constraint; what is the agent's stands in its first row."""
    if not statuses:
        Console().print("no agents; safe-psrl agent create NAME --preset streaming-buffer makes one", highlight=False)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("agent", "condition", "constraint"):
        table.add_column(heading)
    for heading in NUMBERS:
        table.add_column(heading, justify="right", no_wrap=True)
    for status in statuses:
        about = [escape(status.agent), condition_of(status)]
        sums = [f"{status.episode:,}", f"{status.last_reward:.3f}"]
        for constraint in status.constraints or [admin_pb2.ConstraintStatus()]:
            table.add_row(*about, escape(constraint.name), *sums, *constraint_cells(constraint))
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("constraint")
    for heading in (*NUMBERS[2:], "pessimism", "predicted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for constraint in status.constraints:
        more = [f"{constraint.pessimism:.4g}", f"{constraint.predicted_cost:.3f}"]
        table.add_row(escape(constraint.name), *constraint_cells(constraint), *more)
    console.print(table)


def constraint_cells(constraint: admin_pb2.ConstraintStatus) -> list[str]:
    return [
        f"{constraint.last_cost:.3f}",
        f"{constraint.cost_budget:g}",
        f"{constraint.constraint_regret:,.1f}",
        f"{constraint.violations:,}",
        f"{constraint.dual_variable:.3f}",
    ]


def condition_of(status: admin_pb2.AgentStatus) -> str:
    return str(plain(status)["condition"])
