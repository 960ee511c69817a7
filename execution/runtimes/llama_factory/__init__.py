"""Reader of LLaMA-Factory's YAML configuration."""
