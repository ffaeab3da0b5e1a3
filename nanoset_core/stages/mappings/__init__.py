"""The index files of a nanoset's splits, under the trainer's own names."""
