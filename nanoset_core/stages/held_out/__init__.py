"""Find held-out documents that train reads as well, since they make a validation loss too good.

The words of this package:

    held-out document    a document that the split valid or test reads
    leaked document      a held-out document that is shared or copied:
      shared               train reads the document itself
      copied               train reads a copy, which is another document with the same tokens
    further copies       all copies in train except one for each leaked document

For example, document 2 is shared. Document 3 is copied: train reads its copy 1, and also document
4, which is a further copy.

    document     0      1      2      3      4      5
    read by    train  train  train  valid  train  test
                             valid
    tokens       A      B      C      B      B      D
"""
