"""Measurement of sub-layers, links, copies and optimizer steps on this machine with torch."""
