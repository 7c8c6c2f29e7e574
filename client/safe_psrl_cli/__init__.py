"""The command line, `safe-psrl`."""
