"""Best-fit packing: documents laid whole into packs of one length; see `plan`, `assignment` and `writing`."""
