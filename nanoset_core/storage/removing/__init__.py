"""Remove files and whole outputs, and count the space that this frees."""
