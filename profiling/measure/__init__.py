"""Measuring a machine with torch."""
