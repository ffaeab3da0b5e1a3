"""A dataset as one `.pbin` file for Modalities."""
