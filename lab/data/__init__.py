"""From photos and captions to files: drawing shapes, fetching data sets, reading images, the vocabulary, the CNNs. Leave it alone."""
