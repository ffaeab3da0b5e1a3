"""Conditions on documents and the tables that have the documents' columns, evaluated by DuckDB."""
