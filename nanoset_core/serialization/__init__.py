"""Serialization: JSON and YAML of others, read into typed values."""
