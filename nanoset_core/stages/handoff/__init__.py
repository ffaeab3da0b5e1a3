"""The files and arguments that a trainer is started with."""
