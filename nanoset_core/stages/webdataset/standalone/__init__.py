"""`nanoset shuffle`: text, pairs or tars to a folder of shuffled tars, without a project."""
