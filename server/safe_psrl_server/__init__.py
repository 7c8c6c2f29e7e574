"""The service: hosts agents, keeps their events, serves actions over gRPC, and shows how far each constraint is from broken.

contract     safe_psrl_proto
domain       agent_record (the fold), decisions (what a call means), conversion, snapshot
storage      store: compare-and-append on SQLite or in memory
hosting      host: one agent at a time, persist, then acknowledge
edges        control_service, admin_service, status, metrics, config, logs
composition  server (the only place that starts things), embedded
"""
