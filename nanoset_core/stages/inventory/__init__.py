"""The stage that lists the files of a corpus, in order, with digests of their content."""
