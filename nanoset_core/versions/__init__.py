"""Versions: status, diff and gc, told from manifests and recipes."""
