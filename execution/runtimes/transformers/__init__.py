"""The Trainer of transformers: its arguments, read."""
