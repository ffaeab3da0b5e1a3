"""Tokenizer files, what is known about a tokenizer, and the engines that apply it."""
