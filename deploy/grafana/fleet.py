"""The dashboard of all agents: does the constraint hold everywhere, and how far is it from not holding?"""

from typing import Final

from panels import (
    BUDGETS_OVER,
    NONE_WANTED,
    RED,
    SHARE_OF_BOUND,
    SHARE_OF_BUDGET,
    WORTH_A_LOOK,
    Json,
    Query,
    Row,
    over_time,
    stat,
    table,
)
from queries import CHOSEN, per_second, quantiles
from serving import calls, storage
from whole_fleet import whole_fleet

REGRET_IN_BUDGETS: Final = f"safe_psrl_constraint_regret{{{CHOSEN}}} / safe_psrl_cost_budget{{{CHOSEN}}}"
OPEN_AGENT: Final[Json] = {
    "title": "Open this agent",
    "url": "/d/safe-psrl-agent?var-agent=${__value.text}&${__url_time_range}",
}


def rows() -> list[Row]:
    return [holding(), closest(), agents(), learning(), calls(), whole_fleet(), storage()]


def holding() -> Row:
    return Row(
        "Is the constraint holding, and how far is it from not holding?",
        5,
        [
            stat(
                "Budget used, worst agent",
                "Reported costs of all completed episodes as a share of their budgets, for the agent and constraint where it "
                "is greatest. Above 100% the constraint is broken. Learners use nearly all of it by design: yellow is near.",
                f"max(safe_psrl:budget_used:ratio{{{CHOSEN}}})",
                "percentunit",
                SHARE_OF_BUDGET,
                width=4,
                decimals=1,
            ),
            stat(
                "Budget used lately, worst agent",
                "The same for the episodes completed in the last half hour. Above 100%, agents spend what they saved before.",
                f"max(safe_psrl:budget_used:ratio30m{{{CHOSEN}}})",
                "percentunit",
                SHARE_OF_BUDGET,
                width=4,
                decimals=1,
            ),
            stat(
                "Constraint regret, worst agent",
                "Reported costs less budgets, summed over completed episodes, counted in budgets of one episode. Below zero is "
                "what is left; yellow when less than one episode's budget is.",
                f"max({REGRET_IN_BUDGETS})",
                "none",
                BUDGETS_OVER,
                width=4,
                decimals=2,
            ),
            stat(
                "Regret against its bound",
                "Constraint regret as a share of the theorem's bound, for the agent with the largest share. The bound is a "
                "worst case: more than a few per cent means that the environment is not the specified one.",
                f"max(safe_psrl:regret_bound_used:ratio{{{CHOSEN}}})",
                "percentunit",
                SHARE_OF_BOUND,
                width=3,
                decimals=1,
            ),
            stat(
                "Agents over budget",
                "Agents whose completed episodes together cost more than allowed, for at least one constraint.",
                f"count(count by (agent) (safe_psrl_constraint_regret{{{CHOSEN}}} > 0)) or on () vector(0)",
                "none",
                NONE_WANTED,
                width=3,
            ),
            stat(
                "Quarantined",
                "Agents whose stored events are damaged. Their calls are rejected; restore them from a backup.",
                "sum(safe_psrl_quarantined_agents)",
                "none",
                NONE_WANTED,
                width=3,
            ),
            stat(
                "Paused",
                "Agents that an operator has paused. They learn nothing; the fallback policy acts if there is one.",
                f"sum(safe_psrl_paused{{{CHOSEN}}}) or vector(0)",
                "none",
                WORTH_A_LOOK,
                width=3,
            ),
        ],
    )


def closest() -> Row:
    return Row(
        "Closest to the budget",
        9,
        [
            over_time(
                "Budget used lately",
                "Mean reported cost of the last half hour's episodes as a share of the budget; the ten highest.",
                [Query(f"topk(10, safe_psrl:budget_used:ratio30m{{{CHOSEN}}})", "{{agent}} {{constraint}}")],
                "percentunit",
                SHARE_OF_BUDGET,
                width=9,
            ),
            over_time(
                "Constraint regret in budgets of one episode",
                "Above zero the constraint is violated in total, and a rising line violates it further; the ten highest.",
                [Query(f"topk(10, {REGRET_IN_BUDGETS})", "{{agent}} {{constraint}}")],
                "none",
                BUDGETS_OVER,
                width=9,
            ),
            over_time(
                "Alerts firing",
                "By severity. docs/alerts.md describes what to do about each.",
                [
                    Query(
                        'count by (severity) (ALERTS{alertname=~"SafePsrl.*", alertstate="firing"}) or on () vector(0)',
                        "{{severity}}",
                    )
                ],
                "none",
                NONE_WANTED,
                width=6,
            ),
        ],
    )


def agents() -> Row:
    return Row(
        "Agents",
        9,
        [
            table(
                "Agents nearest to their budget",
                "The twenty with the highest share. The name opens the agent's dashboard.",
                [
                    ("budget used", f"topk(20, safe_psrl:budget_used:ratio{{{CHOSEN}}})", "percentunit", SHARE_OF_BUDGET),
                    ("lately", f"topk(20, safe_psrl:budget_used:ratio30m{{{CHOSEN}}})", "percentunit", SHARE_OF_BUDGET),
                    ("regret in budgets", f"topk(20, {REGRET_IN_BUDGETS})", "none", BUDGETS_OVER),
                ],
                OPEN_AGENT,
            ),
            over_time(
                "Agents",
                "All agents, paused agents, and agents without series, which no alert covers.",
                [
                    Query("sum(safe_psrl_agents)", "all"),
                    Query("sum(safe_psrl_paused) or vector(0)", "paused"),
                    Query("sum(safe_psrl_agents_without_series)", "without series"),
                ],
                width=8,
            ),
            stat("Version", "What is running.", "safe_psrl_build_info", "none", legend="{{version}}", width=4),
        ],
    )


def learning() -> Row:
    return Row(
        "Learning",
        8,
        [
            over_time(
                "Transitions",
                "Transitions learned per second; duplicates are repeated reports.",
                [
                    Query(per_second("safe_psrl_transitions_total"), "learned"),
                    Query(per_second("safe_psrl_duplicates_total"), "duplicates"),
                    Query(per_second("safe_psrl_fallback_actions_total"), "fallback actions"),
                ],
                "ops",
            ),
            over_time(
                "Plans",
                "Per second. For infeasible plans no drawn kernel satisfies the satisfiable cost; normal for new agents.",
                [
                    Query(per_second("safe_psrl_plans_total"), "plans"),
                    Query(per_second("safe_psrl_plans_infeasible_total"), "infeasible"),
                ],
                "ops",
            ),
            over_time(
                "Time for a plan",
                "Clients wait this long when they start an episode.",
                quantiles("safe_psrl_plan_duration_seconds"),
                "s",
                ((5.0, RED),),
            ),
        ],
    )
