"""Verification: whether outputs are what their inputs and recipes give, byte by byte where it is asked for."""
