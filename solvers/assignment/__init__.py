"""Layers to stages on given devices: the exact sweep and AMP's table."""
