"""MILP on HiGHS and CP-SAT, the same for every problem."""
