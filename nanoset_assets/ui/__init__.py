"""What the UI shows of an output: metadata, tables, previews and pictures."""
