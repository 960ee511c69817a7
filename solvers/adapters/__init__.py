"""Adapters to general solvers, the same for every problem: MILP on HiGHS, and CP-SAT."""
