"""Hugging Face Accelerate: reader of its configuration and launch options, and export to it."""
