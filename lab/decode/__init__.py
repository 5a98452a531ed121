"""From scores to captions, and what they are worth: beam search, BLEU, CIDEr. Worth reading: ``beam_search.py``."""
