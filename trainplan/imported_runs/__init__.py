"""Imports runs of other runtimes as plans: predicts the run that a user has today, and compares it with the best possible one.

    file -> RunConfiguration -> Plan -> prediction; the joint problem's bound; what to change first

The readers of `execution.runtimes` make a `RunConfiguration` of their files; `detect` finds out which tool a file belongs to;
`to_plan` makes a plan of a configuration; `assess` says how good the plan is. Properties of a file that a plan cannot have are
named, and so are unknown keys.
"""
