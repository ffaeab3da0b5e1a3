"""Who uses what: leases of outputs, and marks of the processes that hold them."""
