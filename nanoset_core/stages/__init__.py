"""The stages of the pipeline, one folder each, in the order of the data; `registry.py` lists them."""
