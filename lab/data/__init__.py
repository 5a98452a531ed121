"""From photos and captions to files: drawing shapes, reading images, the vocabulary, the CNNs. Leave it alone."""
