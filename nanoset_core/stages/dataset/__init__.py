"""The tokens of a corpus as one `.bin`/`.idx` pair."""
