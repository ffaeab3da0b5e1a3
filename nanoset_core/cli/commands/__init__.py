"""The subcommands of `nanoset`, one file each, found by its name."""
