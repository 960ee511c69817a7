"""Hugging Face Accelerate: its configuration and launch options, read and written."""
