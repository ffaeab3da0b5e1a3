"""The text of a corpus as token ids, in shards."""
