"""Chains of layers under a memory limit: label-setting and its bounds, and Galvatron's DP."""
