"""From documents to samples: splits, epochs, index arrays, blends, mixtures."""
