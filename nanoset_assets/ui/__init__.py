"""Pages: what Dagster's UI shows of each output.

A page is a function that makes an output in a run of its asset and returns the metadata that is
shown with the materialisation: a summary, tables, previews, and numbers that Dagster plots over
time. Each stage has its page in a module of this package.
"""
