"""Agents: pure decisions on records, and the one loop that commits and applies them (`runtime`)."""
