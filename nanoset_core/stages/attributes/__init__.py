"""Columns of external tables, joined to documents by id."""
