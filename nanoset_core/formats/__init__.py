"""File formats of the trainers, as bytes: how to read and write each, and nothing about projects."""
