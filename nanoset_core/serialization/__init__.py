"""JSON and YAML → typed values."""
