"""Follow samples back to the documents, files and lines that they came from, and back again."""
