"""Read files, on a disk or in a bucket."""
