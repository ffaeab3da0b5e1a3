"""Modalities' packed datasets: `.pbin` files."""
