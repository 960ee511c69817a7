"""Solvers for one option per layer of a chain under a memory limit: exact label-setting, and Galvatron-BMW's dynamic
program."""
