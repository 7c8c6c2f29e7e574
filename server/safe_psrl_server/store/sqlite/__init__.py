"""The embedded store: one SQLite database in a directory."""
