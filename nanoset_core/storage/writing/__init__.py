"""Write files and whole outputs, on a disk or in a bucket."""
