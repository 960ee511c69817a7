"""LLaMA-Factory: its YAML configuration, read."""
