"""Read documents from tables: Parquet, Arrow and CSV files."""
