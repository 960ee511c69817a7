"""Strategies on mixed clusters: exact search, AMP's planners and baselines."""
