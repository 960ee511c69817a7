"""Methods: each paper's algorithm, the exact ones, and the adapters to HiGHS and CP-SAT, with one interface."""
