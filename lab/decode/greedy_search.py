"""Greedy decoding and sampling, for any decoder that offers two methods:

``start(encoder_out) -> state, memory``
    The first state from the encoding. Both are tuples of tensors with the batch first: the state changes with
    every word, the memory (pixels, attention keys) is the same for every word of an image.
``step(words, state, memory) -> scores, state, alpha``
    From the latest words (n,) and the state: scores of the next word (n, vocab_size) before softmax, the new
    state, and the attention weights (n, num_pixels), or None without attention.
"""

from dataclasses import dataclass

import torch

from lab.data.vocabulary import END, is_special
from utils import evaluating


@dataclass
class Hypothesis:
    """A caption found by search.

    :ivar words: word indices, without <start> and <end>
    :ivar score: log-probability of the words, and of <end> where finished
    :ivar finished: whether <end> was reached within the longest length
    :ivar alphas: (len(words), num_pixels) attention weights per word, or None without attention
    :ivar probabilities: list of the probability of each word after those before it, or None where it was not kept
    """

    words: list
    score: float
    finished: bool
    alphas: torch.Tensor | None = None
    probabilities: list | None = None


@torch.no_grad()
def greedy_search(decoder, encoder_out, word_map, max_len=50):
    """Take the best word at each step, for many images at once.

    :param decoder: any decoder with ``start`` and ``step``
    :param encoder_out: (batch_size, ..., encoder_dim) encoded images
    :param word_map: word -> index
    :param max_len: longest caption in words
    :return: a :class:`Hypothesis` per image, without alphas and probabilities
    :raises FloatingPointError: the decoder's scores are not numbers
    """
    return _word_by_word(decoder, encoder_out, word_map, max_len, lambda log_probs: log_probs.argmax(dim=1))


@torch.no_grad()
def sample_search(decoder, encoder_out, word_map, max_len=50, rules=(), generator=None, samples=1):
    """Draw each word from the decoder's own probabilities, for many images at once.

    :param decoder, encoder_out, word_map, max_len: as of :func:`greedy_search`
    :param rules: for the next word, such as a temperature, see ``rules.py``
    :param generator: ``torch.Generator`` on the decoder's device; None takes the global one
    :param samples: captions drawn per image
    :return: a :class:`Hypothesis` per caption, those of an image side by side, without alphas and probabilities; its
        score is the log-probability without rules
    :raises FloatingPointError: the decoder's scores are not numbers
    """
    def draw(log_probs):
        return torch.multinomial(log_probs.softmax(dim=1), 1, generator=generator).squeeze(1)

    return _word_by_word(decoder, encoder_out, word_map, max_len, draw, samples, rules)


def _word_by_word(decoder, encoder_out, word_map, max_len, choose, samples=1, rules=()):
    """Follow ``samples`` captions per image, each on its own; those that ended leave the batch.

    :param choose: from log-probabilities (captions, vocab_size) to the next words (captions,)
    """
    with evaluating(decoder):
        n, end = len(encoder_out) * samples, word_map['<end>']
        state, memory = repeated(*decoder.start(encoder_out), samples)
        words = torch.full((n,), word_map['<start>'], device=encoder_out.device)
        score = torch.zeros(n, device=words.device)
        excluded = excluded_words(word_map)
        sequences = torch.full((n, max_len + 1), end, device=words.device)
        running = torch.arange(n, device=words.device)  # which caption a row of the batch is
        for t in range(max_len + 1):
            scores, state, _ = decoder.step(words, state, memory)
            log_probs = word_log_probs(scores, excluded)
            words = choose(apply_rules(log_probs, rules, sequences[running, :t].tolist()))
            best = log_probs.gather(1, words.unsqueeze(1)).squeeze(1)
            if t == max_len:  # no room for another word
                best = best.masked_fill(words != end, 0)
            sequences[running, t] = words
            score[running] += best
            stay = (words != end).nonzero().squeeze(1)
            if not len(stay):
                break
            if len(stay) < len(words):
                running, words = running[stay], words[stay]
                state, memory = (tuple(tensor[stay] for tensor in those) for those in (state, memory))
    hypotheses = []
    for row, total in zip(sequences.tolist(), score.tolist(), strict=True):
        finished = end in row
        hypotheses.append(Hypothesis(row[:row.index(end) if finished else max_len], total, finished))
    return hypotheses


def apply_rules(log_probs, rules, captions):
    """Apply all rules for the next word, see ``rules.py``. One that would leave no word is passed over.

    :param log_probs: (n, vocab_size), as what is returned
    :param captions: the n captions so far, lists of word indices
    """
    for rule in rules:
        changed = rule(log_probs, captions)
        log_probs = torch.where(changed.isfinite().any(dim=1, keepdim=True), changed, log_probs)
    return log_probs


def repeated(state, memory, k):
    """State and memory for ``k`` captions of each image."""
    return tuple(tuple(tensor.repeat_interleave(k, dim=0) for tensor in tensors) for tensors in (state, memory))


def excluded_words(word_map):
    """Indices that no caption may contain; <end> is a word like others, it ends the caption."""
    return [index for word, index in word_map.items() if is_special(word) and word != END]


def word_log_probs(scores, excluded):
    """Log-probabilities of the next word; a word that no caption may contain has -inf.

    :param scores: (n, vocab_size) before softmax
    :param excluded: of :func:`excluded_words`
    :return: (n, vocab_size) in single precision
    :raises FloatingPointError: scores are not numbers
    """
    log_probs = scores.float().log_softmax(dim=1)
    if log_probs[:, 0].isnan().any():  # one score that is not a number makes all of its row so
        raise FloatingPointError("the decoder's scores are not numbers: look for a division or logarithm in your "
                                 'models.py, or train again')
    log_probs[:, excluded] = -torch.inf
    return log_probs
