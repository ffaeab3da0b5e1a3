"""A small project made of real text that every Python installation holds."""
