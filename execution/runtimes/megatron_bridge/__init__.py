"""Megatron-Bridge: its configuration container, read and written."""
