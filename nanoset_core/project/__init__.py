"""A project: nanoset.yaml as a whole, the graph of its outputs, and the commands over all of them."""
