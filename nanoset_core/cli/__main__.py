"""`python -m nanoset_core.cli` is the `nanoset` command."""

from nanoset_core.cli import main

main()
