"""nanoset.yaml: its keys, their defaults and ranges, and the checks of what needs each other."""
