"""Versions of outputs: status, diff and gc, by manifests and recipes."""
