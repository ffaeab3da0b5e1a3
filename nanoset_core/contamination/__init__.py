"""Documents that hold texts of evaluations: found by n-grams of words, over the tokens."""
