"""Outputs: their recipes and manifests, and the folder that contains all their versions."""
