"""Erase documents from all outputs that contain them: `nanoset purge`."""
