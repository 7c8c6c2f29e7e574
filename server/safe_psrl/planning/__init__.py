"""Planning on a known kernel: backward induction, evaluation, the exact constrained optimum."""
