"""Solvers of memory-switches, the choice of H3T's switches for each layer: exact search, and H3T's planners."""
