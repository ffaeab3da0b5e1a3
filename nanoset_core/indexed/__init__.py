"""Former name of `nanoset_core.formats.indexed`; pickles of datasets contain it."""
