"""The dashboard of all agents: does the constraint hold everywhere, and how far is it from not holding?"""

from typing import Final

from panels import (
    BUDGETS_OVER,
    NONE_WANTED,
    RED,
    SHARE_OF_BOUND,
    SHARE_OF_BUDGET,
    WORTH_A_LOOK,
    YELLOW,
    Json,
    Query,
    Row,
    over_time,
    stat,
    table,
)

CHOSEN: Final = 'agent=~"$agent"'
REGRET_IN_BUDGETS: Final = f"safe_psrl_constraint_regret{{{CHOSEN}}} / safe_psrl_cost_budget{{{CHOSEN}}}"
NOT_OK: Final = 'grpc_server_handled_total{grpc_code!="OK"}'
OPEN_AGENT: Final[Json] = {
    "title": "Open this agent",
    "url": "/d/safe-psrl-agent?var-agent=${__value.text}&${__url_time_range}",
}


def quantile(share: float, histogram: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket[$__rate_interval])))"


def per_second(counter: str, by: str = "") -> str:
    return f"sum {by}(rate({counter}[$__rate_interval]))"


def mean(histogram: str) -> str:
    return f"sum(rate({histogram}_sum[$__rate_interval])) / sum(rate({histogram}_count[$__rate_interval]))"


def quantiles(histogram: str) -> list[Query]:
    return [Query(quantile(share, histogram), f"{share:.0%} of them") for share in (0.5, 0.9, 0.99)]


def rows() -> list[Row]:
    return [holding(), closest(), agents(), learning(), calls(), storage()]


def holding() -> Row:
    return Row(
        "Is the constraint holding, and how far is it from not holding?",
        5,
        [
            stat(
                "Budget used, worst agent",
                "Mean reported cost of all completed episodes as a share of the budget, for the agent and constraint where it "
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


def calls() -> Row:
    return Row(
        "Calls",
        8,
        [
            over_time(
                "Calls",
                "Calls finished per second, by method.",
                [Query(per_second("grpc_server_handled_total", "by (grpc_method) "), "{{grpc_method}}")],
                "reqps",
            ),
            over_time(
                "Time for a call",
                "99% are faster. Streams last as long as their client plays.",
                [Query(quantile(0.99, "grpc_server_handling_seconds", "grpc_method, le"), "{{grpc_method}}")],
                "s",
            ),
            over_time(
                "Calls under way",
                "Calls started and not yet finished; streams count while they are open.",
                [Query("sum(grpc_server_started_total) - (sum(grpc_server_handled_total) or vector(0))", "calls")],
            ),
            over_time(
                "Failures",
                "Share of the calls that failed for a reason on the server's side.",
                [Query("max(safe_psrl:server_faults:ratio5m) or vector(0)", "server's fault")],
                "percentunit",
                ((0.01, YELLOW), (0.05, RED)),
                width=6,
            ),
            over_time(
                "Codes",
                "Calls per second that ended with a status other than OK.",
                [Query(f"{per_second(NOT_OK, 'by (grpc_code) ')} or on () vector(0)", "{{grpc_code}}")],
                "reqps",
                width=6,
            ),
            over_time(
                "Rejections",
                "Calls and stream messages rejected per second, by reason: mostly errors of clients.",
                [Query(f"{per_second('safe_psrl_rejections_total', 'by (reason) ')} or on () vector(0)", "{{reason}}")],
                "reqps",
                width=6,
            ),
            over_time(
                "Messages",
                "Each second, streams included.",
                [
                    Query(per_second("grpc_server_msg_received_total"), "received"),
                    Query(per_second("grpc_server_msg_sent_total"), "sent"),
                ],
                "ops",
                width=6,
            ),
        ],
    )


def storage() -> Row:
    return Row(
        "Storage",
        8,
        [
            over_time(
                "Time for a commit",
                "Every reply waits for one.",
                quantiles("safe_psrl_store_commit_seconds"),
                "s",
                ((0.1, RED),),
            ),
            over_time(
                "Events in a commit",
                "Mean. It rises under load, because concurrent calls share one commit.",
                [Query(mean("safe_psrl_store_commit_events"), "events")],
            ),
            over_time(
                "Disk",
                "Free space on the data directory's file system, and the size of the database.",
                [Query("min(safe_psrl_store_free_bytes)", "free"), Query("sum(safe_psrl_store_bytes)", "database")],
                "bytes",
                logarithmic=True,
            ),
            over_time(
                "Snapshots",
                "Age of the oldest event that is newer than its agent's snapshot.",
                [Query(f"max(safe_psrl_snapshot_age_seconds{{{CHOSEN}}})", "age")],
                "s",
                ((600.0, YELLOW), (900.0, RED)),
                width=6,
            ),
            over_time(
                "Events behind a snapshot",
                "Events that a start would read, for the agent with the most.",
                [Query(f"max(safe_psrl_snapshot_lag_events{{{CHOSEN}}})", "events")],
                width=6,
            ),
            over_time(
                "Size of a snapshot",
                "On average since the start.",
                [Query("sum(safe_psrl_snapshot_bytes_sum) / sum(safe_psrl_snapshot_bytes_count)", "size")],
                "bytes",
                width=6,
            ),
            stat(
                "Last recovery",
                "Duration of the recovery at the last start.",
                "max(safe_psrl_recovery_seconds)",
                "s",
                width=6,
            ),
        ],
    )
