"""DeepSpeed: its JSON configuration, read and written."""
