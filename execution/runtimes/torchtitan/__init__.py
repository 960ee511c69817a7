"""torchtitan: reader of its TOML and Python configurations, and export to it."""
