"""Conditions on documents and the tables that have the documents' columns, evaluated by DuckDB.

`conditions` parses what users write, such as `quality >= 3`; `relation` reads the columns from the
Parquet files of shards; `scan` combines both; `connection` opens DuckDB so that it can read these
files and nothing else.
"""
