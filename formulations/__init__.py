"""Planning problems: plans, schedules, costs, and each problem as an instance, a MILP and a CP-SAT model."""
