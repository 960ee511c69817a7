"""What people start training with, read safely: shell scripts, Python configurations, documents and logs, of any runtime."""
