"""Metadata that the UI shows of an output: numbers, tables and previews."""
