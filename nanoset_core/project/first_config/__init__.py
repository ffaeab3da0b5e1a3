"""Write the first nanoset.yaml of a project: `nanoset init`."""
