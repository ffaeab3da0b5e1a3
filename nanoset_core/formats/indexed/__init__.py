"""Megatron-LM's indexed datasets: the `.bin`/`.idx` pairs."""
