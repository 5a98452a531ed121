"""Rules for the next word, and for which caption is best, of any search:

>>> evaluate(model, search=partial(beam_search, rules=[no_repeated(3)], rank=per_word))
>>> evaluate(model, search=drawn(temperature(0.7), nucleus(0.9)))

A rule for the next word is a function from log-probabilities (n, vocab_size) and the n captions so far, lists of word
indices, to log-probabilities that need no sum of 1. -inf excludes a word.
"""

import torch

from lab.decode.greedy_search import sample_search


def temperature(t):
    """log p / t: below 1 for safer captions, above for wilder ones."""
    return lambda log_probs, captions: log_probs / t


def top_k(k):
    """Only the k most probable words."""
    return lambda log_probs, captions: log_probs.masked_fill(log_probs < log_probs.topk(k).values[:, -1:], -torch.inf)


def nucleus(p):
    """Only the most probable words, as many as have p of the probability together, at least one (Holtzman et al. 2020,
    arXiv 1904.09751, sec. 3.1)."""
    def rule(log_probs, captions):
        ordered, words = log_probs.sort(dim=1, descending=True)
        before = ordered.softmax(dim=1).cumsum(dim=1) - ordered.softmax(dim=1)  # probability of the words before
        return torch.full_like(log_probs, -torch.inf).scatter(1, words, ordered.masked_fill(before >= p, -torch.inf))
    return rule


def no_repeated(n=3):
    """No n words in a row twice in one caption (Paulus et al. 2018, arXiv 1705.04304, sec. 2.5)."""
    def rule(log_probs, captions):
        log_probs = log_probs.clone()
        for row, words in enumerate(captions):
            for start in range(len(words) - n + 1):
                if words[start:start + n - 1] == words[len(words) - n + 1:]:
                    log_probs[row, words[start + n - 1]] = -torch.inf
        return log_probs
    return rule


def per_word(score, length):
    """A caption's mean log-probability per word in place of the sum, for the parameter ``rank`` of ``beam_search``: the
    sum prefers short captions."""
    return score / length


def drawn(*rules, seed=0):
    """Sampling as a search for ``evaluate`` and ``caption_image``: one caption per image, whatever the beam size."""
    def search(decoder, encoder_out, word_map, beam_size=1, max_len=50):
        generator = torch.Generator(encoder_out.device).manual_seed(seed)
        return sample_search(decoder, encoder_out, word_map, max_len, generator=generator, rules=rules)
    return search
