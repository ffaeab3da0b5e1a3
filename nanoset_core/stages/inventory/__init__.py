"""The files of a corpus, in order, with a digest of each."""
