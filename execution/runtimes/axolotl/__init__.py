"""Axolotl: its YAML configuration, read."""
