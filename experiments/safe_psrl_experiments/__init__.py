"""The comparison of the paper: algorithms over seeds, figures, and benchmarks."""
