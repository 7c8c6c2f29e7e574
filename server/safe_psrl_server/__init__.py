"""The service: hosts agents, keeps their events, serves actions over gRPC, and reports each constraint's safety margin.

server, config, embedded   the composition root, its settings, and the service inside another program
rpc                        the gRPC services: decode, call, encode
agents                     decisions on records, and the one loop that commits and applies them
store                      compare-and-append on SQLite, PostgreSQL or in memory
security                   credentials, roles, quotas, TLS
metrics                    Prometheus metrics and traces
"""
