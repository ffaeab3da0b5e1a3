"""The list of a corpus's files, cut into pieces, with a hash of each piece."""
