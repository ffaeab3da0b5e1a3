"""Typed records and their JSON and YAML forms, with the place of each mistake."""
