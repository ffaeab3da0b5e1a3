"""Outputs: what made them (recipes and manifests), and the root below which their versions lie."""
