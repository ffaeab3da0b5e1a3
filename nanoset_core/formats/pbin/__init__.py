"""Modalities' `.pbin` files and the indexes next to its JSONL files, as bytes and arrays."""
