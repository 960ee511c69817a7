"""Solvers that assign layers to pipeline stages on given devices: an exact sweep, and AMP's table."""
