"""Solves the joint problem with proof: bounds on all spans, a search over paths of them, and exact stages."""
