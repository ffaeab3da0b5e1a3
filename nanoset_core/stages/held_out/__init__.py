"""Documents of the validation and test splits that the training split also reads."""
