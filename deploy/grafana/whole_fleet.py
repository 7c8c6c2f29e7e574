"""The row about all agents, whether or not they have series of their own, and about those in memory."""

from panels import SHARE_OF_BUDGET, Json, Query, Row, over_time

LOADS = "safe_psrl_agent_load_seconds"


def whole_fleet() -> Row:
    return Row("Whole fleet", 8, [_worst(), _memory(), _calls(), _loads()])


def _worst() -> Json:
    return over_time(
        "Budget used lately, worst of all agents",
        "Mean cost of the latest episodes, at most 100, as a share of the budget; of agents without series, too.",
        [Query("topk(10, max by (agent) (safe_psrl_worst_cost_ratio)) or on () vector(0)", "{{agent}}")],
        "percentunit",
        SHARE_OF_BUDGET,
        width=6,
    )


def _memory() -> Json:
    return over_time(
        "Agents in memory",
        "The others are loaded when they are used. At limits.max_resident_agents the least recently used are evicted.",
        [Query("sum(safe_psrl_resident_agents)", "in memory"), Query("max(safe_psrl_agents)", "stored")],
        width=6,
    )


def _calls() -> Json:
    return over_time(
        "Calls that wait for a load",
        "Per second. As many loads and evictions as calls: more agents are in use than fit into memory.",
        [
            Query("sum(rate(safe_psrl_agent_hits_total[$__rate_interval]))", "found in memory"),
            Query(f"sum(rate({LOADS}_count[$__rate_interval]))", "loaded"),
            Query("sum(rate(safe_psrl_agent_evictions_total[$__rate_interval]))", "evicted"),
        ],
        "ops",
        width=6,
    )


def _loads() -> Json:
    return over_time(
        "Time to load an agent",
        "On average since the start. It grows with the events after the agent's snapshot.",
        [Query(f"(sum({LOADS}_sum) / (sum({LOADS}_count) > 0)) or on () vector(0)", "a load")],
        "s",
        width=6,
    )
