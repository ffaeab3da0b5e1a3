"""Read nanoset.yaml, find out which outputs are stale, and run commands over all outputs."""
