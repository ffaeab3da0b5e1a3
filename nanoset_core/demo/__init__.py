"""A small project made of text that every Python installation contains."""
