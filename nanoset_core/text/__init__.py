"""Raw text: files, lines and rows, documents, and lines that are rejected."""
