"""Prometheus metrics: `agents` reads durable state at each scrape; `meter` and `calls` count what this process does."""
