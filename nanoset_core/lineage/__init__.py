"""Lineage: from a sample back to the document, file and line that it came from, and the other way."""
