"""Views: which documents of a corpus make a dataset of their own, how often and in which order."""
