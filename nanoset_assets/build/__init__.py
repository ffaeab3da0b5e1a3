"""Build a project in this process: the command `nanoset build`."""
