"""Benchmarks. Each figure is compared with a limit measured in the same run; the target is on their ratio."""
