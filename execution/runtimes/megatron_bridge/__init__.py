"""Megatron-Bridge: reader and export of its ConfigContainer."""
