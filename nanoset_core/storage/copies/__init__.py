"""Copies on this machine of files that are in buckets."""
