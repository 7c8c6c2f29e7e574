"""An agent's series as a reply."""

import math

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.series import COMMON, EACH


def history_of(record: AgentRecord) -> admin_pb2.GetHistoryResponse:
    return admin_pb2.GetHistoryResponse(points=[_point(row) for row in list(record.series.points)], entries=record.log)


def _point(row: list[float]) -> admin_pb2.HistoryPoint:
    first, number, time_micros, reward, predicted, drift = row[:COMMON]
    point = admin_pb2.HistoryPoint(
        episode=int(first),
        episodes=int(number),
        time_micros=int(time_micros),
        reward=reward,
        predicted_reward=predicted,
        drift_statistic=drift,
    )
    for place in range(COMMON, len(row), EACH):
        cost, budget, predicted_cost, certified, dual = row[place : place + EACH]
        one = point.constraints.add(cost=cost, cost_budget=budget, predicted_cost=predicted_cost, dual_variable=dual)
        if not math.isnan(certified):
            one.certified_cost = certified
    return point
