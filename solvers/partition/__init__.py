"""Pipelines cut at sub-layers: exact search, AutoPipe, its slicer, Piper and DAPPLE."""
