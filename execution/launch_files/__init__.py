"""Readers of the files that start training runs or report on them: shell scripts, Python files, documents in YAML, JSON or
TOML, and logs."""
