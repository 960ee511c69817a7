"""Certificates of the joint problem: files that prove a lower bound, and their check in integers, without a solver."""
