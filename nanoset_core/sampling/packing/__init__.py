"""Best-fit packing: which documents go together into sequences of one length."""
