"""What Prometheus sees. `agents` reads what was learned from durable state; `meter` and `calls` count what this process does.

`page` puts them together for a scrape.
"""
