"""Solvers for one option per layer of a chain under a memory limit: exact label-setting, and Galvatron's dynamic program."""
