"""Configurations of other runtimes, read as plans: what a user runs now, predicted, and held against what could be run.

    file -> Configuration -> Plan -> walks; the joint problem's bound; what to change first

`megatron`, `torchtitan`, `deepspeed`, `accelerate`, `axolotl`, `llamafactory` and `transformers_arguments` read their files
into one `Configuration`; `detect` says whose a file is; `planned` makes it a plan; `judging` says how good it is. What a file
says beyond a plan's words is named, and so are keys that nobody knows.
"""
