"""Compare two versions of a dataset or view: `nanoset diff`."""
