"""The places that files can be in, each with the methods of `nanoset_core.storage.store.Store`."""
