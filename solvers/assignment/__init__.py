"""Solvers that assign layers to pipeline stages on given devices: an exact sweep, AMP's table, and even divisions."""
