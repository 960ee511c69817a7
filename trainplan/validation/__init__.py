"""Predictions held against measured runs, and the fit of efficiencies to them."""
