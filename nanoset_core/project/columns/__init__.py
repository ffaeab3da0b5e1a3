"""Describe the values of the columns of a corpus: `nanoset columns`."""
