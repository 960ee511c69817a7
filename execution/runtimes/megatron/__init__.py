"""Megatron-LM: reader of its arguments and logs, and export to it."""
