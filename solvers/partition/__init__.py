"""Solvers for pipelines cut at sub-layers: exact search, AutoPipe and its slicer, and the planners of Megatron-LM, Piper and
DAPPLE."""
