"""Captions are found (greedy, beam search, sampling) and scored (BLEU, CIDEr). Worth reading: ``beam_search.py``."""
