"""Benchmarks. Each figure stands beside a limit measured in the same run, and the ratio of the two is what is judged."""
