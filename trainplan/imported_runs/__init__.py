"""Runs of other runtimes, read as plans: what a user runs now is predicted, and held against the best that could be run.

    file -> Configuration -> Plan -> prediction; the joint problem's bound; what to change first

The readers of `execution.runtimes` make one `Configuration` of their files; `detect` says whose file it is; `to_plan` makes a
plan of it; `assess` says how good it is. What a file says that a plan cannot hold is named, and so are keys that nobody knows.
"""
