"""Datasets of chosen documents, over the tokens of a corpus."""
