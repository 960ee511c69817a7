"""Solvers for strategies on mixed clusters: exact search, AMP's planners, and the baselines that AMP is compared with."""
