"""Clusters: kinds of devices, links, and what a machine tells of itself."""
