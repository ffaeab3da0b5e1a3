"""Find the files of a corpus, and tell which of them are text, and in which format."""
