"""From photos and captions to files: shapes, downloads, images, the vocabulary, the CNNs. Leave it alone."""
