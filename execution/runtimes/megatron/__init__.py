"""Megatron-LM: its arguments, read and written."""
