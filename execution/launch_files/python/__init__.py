"""Reading Python files that configure a training run from their syntax trees, without running them."""
