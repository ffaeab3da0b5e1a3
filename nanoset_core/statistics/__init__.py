"""Hashes, ranks, counts and histograms of values, for millions of them at once, with numpy."""
