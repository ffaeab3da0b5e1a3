"""Say what a build would do, without doing it: `nanoset build --dry-run`."""
