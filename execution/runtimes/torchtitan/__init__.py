"""torchtitan: its TOML and Python configurations, read and written."""
