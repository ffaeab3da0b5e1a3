"""Tokenize files without a project: `nanoset tokenize`."""
