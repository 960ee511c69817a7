"""Reader of axolotl's YAML configuration."""
