"""Rules of a search: for the next word, and for which caption is best.

>>> evaluate(model, search=partial(beam_search, rules=[no_repeat_ngram(3)], rank=length_normalised))
>>> evaluate(model, search=sampling(temperature(0.7), nucleus(0.9)))

A rule for the next word is a function from log-probabilities (n, vocab_size) and the n captions so far, lists of word
indices, to log-probabilities that need not sum to 1. -inf excludes a word. (Other libraries call them logits
processors.) Rules are applied one after the other. One that would leave no word is passed over, so give
``no_repeat_ngram`` before ``nucleus`` or ``top_k``. Beam search adds up what the rules return; the score of a sampled
caption is that of the decoder alone.
"""

import functools

import torch

from lab.decode.greedy_search import sample_search


def temperature(t):
    """log p / t: below 1 for safer captions, above for wilder ones."""
    if not t > 0:
        raise ValueError(f'temperature is {t}; it must be above 0')
    return lambda log_probs, captions: log_probs / t


def top_k(k):
    """Only the k most probable words."""
    return lambda log_probs, captions: log_probs.masked_fill(log_probs < log_probs.topk(k).values[:, -1:], -torch.inf)


def nucleus(p):
    """Only the most probable words that together have the probability p (Holtzman et al. 2020, arXiv 1904.09751,
    sec. 3.1); also called top-p."""
    def rule(log_probs, captions):
        ordered, words = log_probs.sort(dim=1, descending=True)
        probabilities = ordered.softmax(dim=1)
        before = probabilities.cumsum(dim=1) - probabilities  # of the more probable words
        return torch.full_like(log_probs, -torch.inf).scatter(1, words, ordered.masked_fill(before >= p, -torch.inf))
    return rule


def no_repeat_ngram(n=3):
    """No sequence of n words twice in a caption (Paulus et al. 2018, arXiv 1705.04304, sec. 2.5)."""
    def rule(log_probs, captions):
        log_probs = log_probs.clone()
        for row, words in enumerate(captions):
            for start in range(len(words) - n + 1):
                if words[start:start + n - 1] == words[len(words) - n + 1:]:
                    log_probs[row, words[start + n - 1]] = -torch.inf
        return log_probs
    return rule


def length_normalised(score, length):
    """The mean log-probability per word, for ``rank`` of ``beam_search``. The sum prefers short captions."""
    return score / length


def sampling(*rules, seed=0):
    """Sampling as a search for ``evaluate`` and ``caption_image``: one caption per image, whatever the beam size."""
    @functools.cache
    def generator(device):
        return torch.Generator(device).manual_seed(seed)

    def search(decoder, encoder_out, word_map, beam_size=1, max_len=50):
        return sample_search(decoder, encoder_out, word_map, max_len, rules, generator(encoder_out.device))
    return search
