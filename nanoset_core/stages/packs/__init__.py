"""Datasets whose documents are packed, unbroken, into sequences of one length."""
