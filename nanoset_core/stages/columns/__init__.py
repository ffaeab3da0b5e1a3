"""Values of the raw text that are stored for each document."""
