"""The file formats of the trainers: how to read and write each, independent of projects."""
