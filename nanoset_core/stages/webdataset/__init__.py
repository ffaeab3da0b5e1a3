"""Shuffled tars of a webdataset."""
