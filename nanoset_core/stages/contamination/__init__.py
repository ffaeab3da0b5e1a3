"""Documents that contain texts of evaluation files, found by n-grams of words."""
