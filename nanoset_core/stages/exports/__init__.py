"""A dataset in the layout of another reader: datatrove, OLMo-core, MDS, litdata."""
