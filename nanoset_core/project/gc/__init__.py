"""Remove old versions of outputs that nothing needs any more: `nanoset gc`."""
