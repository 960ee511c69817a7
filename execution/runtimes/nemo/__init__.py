"""Reader of NeMo's YAML configuration."""
