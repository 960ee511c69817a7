"""NeMo: its YAML configuration, read."""
