"""What training takes beside a plan: tokens, an optimizer's settings, evaluation, metrics, weights, and an orderly end."""
