"""Clusters: kinds of devices, the links between them, and detection of the machine at hand."""
