"""Typed records: converted from YAML and JSON, with the place of each mistake."""
