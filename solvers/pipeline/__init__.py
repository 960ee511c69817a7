"""Whole pipelines of layers with strategies: exact search and Galvatron-BMW's planners."""
