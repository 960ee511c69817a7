"""DeepSpeed: reader of its JSON configuration, and export to it."""
