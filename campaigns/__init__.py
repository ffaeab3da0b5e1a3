"""Campaigns: thousands of trials in which files are damaged and builds are disturbed."""
