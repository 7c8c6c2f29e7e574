"""The rows about calls and storage of all replicas."""

from typing import Final

from panels import RED, YELLOW, Query, Row, over_time, stat
from queries import CHOSEN, mean, per_second, quantile, quantiles

NOT_OK: Final = 'grpc_server_handled_total{grpc_code!="OK"}'


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
