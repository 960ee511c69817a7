"""Solvers for whole pipelines of layers with a strategy for each layer: exact search, and Galvatron-BMW's planners."""
