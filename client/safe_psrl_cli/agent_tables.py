"""Whether agents hold their budgets, as a table and one by one."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console

from safe_psrl_cli.connection import plain
from safe_psrl_cli.tables import escape, print_table, table_of
from safe_psrl_client.documents import PESSIMISM_COEFFICIENTS
from safe_psrl_client.visible_text import visible
from safe_psrl_console.budget_status import (
    FEWEST_EPISODES,
    VERDICTS,
    BudgetStatus,
    Level,
    budget_statuses,
    unit_of,
    worst_status,
)
from safe_psrl_console.number_text import number_text
from safe_psrl_proto.v1 import admin_pb2, model_pb2

NO_AGENTS: Final = "no agents; create one with: safe-psrl agent create NAME --preset streaming-buffer"
NO_MATCHES: Final = "no agents match these options"


def show_agents(statuses: Sequence[admin_pb2.AgentStatus], is_filtered: bool = False) -> None:
    """A row for each agent; with several constraints, a row for each of them below it. Narrow terminals lack the last columns.

    An agent that is paused, quarantined or in shadow has that word below its verdict.
    """
    if not statuses:
        Console().print(NO_MATCHES if is_filtered else NO_AGENTS, highlight=False, soft_wrap=True)
        return
    numbers = ("recent\ncost", "planned\ncost", "\nbudget", "constraint\nregret", "\nmethod", "\nepisodes", "\nfallback")
    table = table_of(None, "\nagent", "\nverdict", *numbers)
    for status in statuses:
        judged = budget_statuses(status)
        verdict = _verdict_cell(status, worst_status(judged).level)
        about = [status.method or "-", f"{status.completed_episodes:,}", "yes" if status.has_fallback else "no"]
        if len(judged) == 1:
            table.add_row(escape(status.agent), verdict, *_cells(judged[0], status.constraints[0], status), *about)
            continue
        table.add_row(escape(status.agent), verdict, *[""] * 4, *about)
        for one, constraint in zip(judged, status.constraints, strict=True):
            table.add_row(f"  {escape(one.constraint)}", VERDICTS[one.level], *_cells(one, constraint, status))
    print_table(table)


def _verdict_cell(status: admin_pb2.AgentStatus, level: Level) -> str:
    if status.condition == admin_pb2.AGENT_CONDITION_QUARANTINED:  # its costs are unknown
        return condition_of(status)
    paused = status.condition == admin_pb2.AGENT_CONDITION_PAUSED
    words = [condition_of(status)] * paused + [status.mode] * (status.mode == "shadow")
    return "\n".join([VERDICTS[level], *words])


def _cells(judged: BudgetStatus, constraint: admin_pb2.ConstraintStatus, status: admin_pb2.AgentStatus) -> list[str]:
    predicted, budget = f"{constraint.predicted_cost:.4g}" if status.episode else "-", f"{judged.budget:.4g}"
    if not status.recent_episodes:
        return ["-", predicted, budget, "-"]
    return [f"{constraint.recent_cost:.4g}", predicted, budget, f"{constraint.constraint_regret:,.1f}"]


def show_agent(status: admin_pb2.AgentStatus, spec: model_pb2.AgentSpec) -> None:
    """A line for each quantity, first of the agent, then of each constraint."""
    console = Console(emoji=False)
    for label, text in [*_agent_lines(status, spec), *_constraint_lines(status, spec)]:
        console.print(f"{label:16}{visible(text)}", highlight=False, markup=False, soft_wrap=True)


def _agent_lines(status: admin_pb2.AgentStatus, spec: model_pb2.AgentSpec) -> Iterator[tuple[str, str]]:
    judged = budget_statuses(status)
    created = datetime.fromtimestamp(status.created_micros / 1e6, UTC)
    reason = f" ({status.condition_reason})" if status.condition_reason else ""
    fallback = spec.HasField("fallback_policy")
    yield "agent", status.agent
    yield "verdict", _verdict(worst_status(judged).level, status)
    yield "condition", condition_of(status) + reason
    yield "mode", MODES.get(status.mode, status.mode)
    yield "method", spec.options.method
    acting = "it acts while the agent is paused" if fallback else "while the agent is paused, requests for actions fail"
    yield "fallback", f"{'yes' if fallback else 'no'}: {acting}"
    yield "created", f"{created:%Y-%m-%d %H:%M:%S} UTC"
    if spec.HasField("warm_start"):
        known = spec.warm_start
        yield "began with", f"{known.source or 'a log'}: {known.rows:,} transitions of weight {known.weight:g}"
    if limits := _limits(spec.guard):
        yield "guard", f"pauses {', '.join(limits)}"
    opened = f"{status.episode:,} begun, {status.completed_episodes:,} completed, {len(status.open_episodes)} open"
    yield f"{unit_of(status)}s", opened
    if status.shadow_episodes:
        yield "in shadow", f"{status.shadow_episodes:,} more completed: see `safe-psrl agent compare {status.agent}`"
    yield "transitions", f"{status.transitions:,}, {status.overridden_actions:,} with another action than proposed"
    if status.completed_episodes:
        mean = status.cumulative_reward / (status.epoch_steps or status.completed_episodes)
        recent = f"{status.recent_reward:.6g} over the last {status.recent_episodes:,} {unit_of(status)}s"
        yield "mean reward", f"{recent}; {mean:.6g} over all; {status.last_reward:.6g} in the last"
    if status.episode:
        yield "latest plan", f"predicts reward {status.predicted_reward:.6g}; took {1000 * status.plan_seconds:.3g} ms"
    yield "visited", f"{status.visited_ratio:.1%} of the pairs of state and action"
    if status.HasField("drift_statistic"):
        found = f"{status.drift_detections:,} detections; on detection: {status.on_detect}"
        yield "drift", f"statistic {status.drift_statistic:.3g}, alarm at {status.drift_alarm:g}; {found}"
    yield "version", f"{status.version:,} events; version {status.definition_version} of the definition"
    yield "state digest", status.state_digest


def _limits(guard: model_pb2.Guard) -> list[str]:
    """What pauses the agent, in words."""
    limits = [f"above a constraint regret of {guard.max_constraint_regret:g}"] * guard.HasField("max_constraint_regret")
    limits += [f"above a strong violation of {guard.max_strong_violation:g}"] * guard.HasField("max_strong_violation")
    return limits + ["on drift"] * guard.on_drift


MODES: Final = {"live": "live: it acts", "shadow": "shadow: it proposes, and another controller acts"}
CERTIFICATES: Final = {
    model_pb2.CERTIFICATE_CONFIDENCE: "cost at most {:.6g}, with confidence {:g}",
    model_pb2.CERTIFICATE_CERTAIN: "cost at most {:.6g}, whatever the environment does",
    model_pb2.CERTIFICATE_NONE: "no: the bound is {:.6g}, above the budget",
}


def _constraint_lines(status: admin_pb2.AgentStatus, spec: model_pb2.AgentSpec) -> Iterator[tuple[str, str]]:
    units = f"{unit_of(status)}s"
    for judged, one in zip(budget_statuses(status), status.constraints, strict=True):
        yield "", ""
        yield "constraint", one.name
        yield (
            "  budget",
            f"{one.cost_budget:g} {'a step' if status.continuing else 'an episode'}; {one.satisfiable_cost:g} is satisfiable",
        )
        if status.completed_episodes:
            yield "  verdict", _verdict(judged.level, status)
            margin = number_text(abs(judged.margin), 4)
            spare = f"{margin} to spare" if judged.margin >= 0 or margin == "0" else f"{margin} above it"
            share = f"{judged.share:.1%} of their budget; {spare}"
            yield "  recent cost", f"{one.recent_cost:.6g}, the mean of {status.recent_episodes:,} {units}: {share}"
            yield "  mean cost", f"{one.mean_cost:.6g} over all {units}; {one.last_cost:.6g} in the last"
            yield "  over budget", f"{one.violations:,} of {status.completed_episodes:,} {units}"
            regret = f"{number_text(one.constraint_regret)}; never above {number_text(one.constraint_regret_max)}"
            yield "  regret", f"{regret} (the sum of cost less budget)"
            violation = number_text(one.strong_violation)
            yield "  violation", f"{violation} (the sum of cost above budget, of the {units} over budget)"
        if status.episode:
            yield "  predicted", f"cost {number_text(one.predicted_cost)} for the latest {units[:-1]}, on its sampled kernel"
            if one.HasField("certified_cost"):
                yield "  certified", CERTIFICATES[status.certificate].format(one.certified_cost, spec.options.confidence)
            if spec.options.method in PESSIMISM_COEFFICIENTS:  # the other methods have neither
                yield "  pessimism", f"{number_text(one.pessimism)} taken off the budget"
                yield "  dual variable", f"{number_text(one.dual_variable)}; cost price {number_text(one.cost_price)}"


def _verdict(level: Level, status: admin_pb2.AgentStatus) -> str:
    mean = f": the mean cost of the last {status.recent_episodes:,} {unit_of(status)}s is"
    detail = {
        Level.OVER: f"{mean} above their budget, by two standard errors or more",
        Level.NEAR: f"{mean} above their budget, by less than two standard errors",
        Level.WITHIN: f"{mean} within their budget",
        Level.UNKNOWN: f": {status.completed_episodes} of {FEWEST_EPISODES} {unit_of(status)}s completed",
    }
    return VERDICTS[level] + detail[level]


def verdict_of(status: admin_pb2.AgentStatus) -> dict[str, str]:
    """For scripts: over, near, within or unknown, of the worst constraint."""
    return {"verdict": worst_status(budget_statuses(status)).level.value}


def condition_of(status: admin_pb2.AgentStatus) -> str:
    return str(plain(status)["condition"])
