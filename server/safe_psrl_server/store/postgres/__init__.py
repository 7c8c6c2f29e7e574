"""The shared store: PostgreSQL, for several replicas on one database."""
