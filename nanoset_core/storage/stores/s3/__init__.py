"""Buckets of S3, and of servers that speak its protocol."""
