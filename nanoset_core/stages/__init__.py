"""The stages of the pipeline, in one folder each; `registry.py` lists them in order."""
