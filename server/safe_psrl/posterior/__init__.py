"""The Dirichlet posterior: random streams, draws of kernels, uncertainty of a policy's cost."""
