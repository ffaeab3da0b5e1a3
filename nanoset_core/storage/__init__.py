"""Storage: files that appear whole, locally or in a bucket; scratch folders and locks."""
