"""Beam search, for any decoder with the two methods of ``greedy_search.py``."""

from dataclasses import replace

import torch

from lab.decode.greedy_search import Hypothesis, apply_rules, excluded_words, repeated, word_log_probs
from utils import evaluating


def rank(score, length):
    """What decides between captions: the sum of their log-probabilities, as in both papers, whatever their length.

    :param score: sum of log-probabilities
    :param length: number of words, <end> counted
    :return: the larger, the better. A higher score must rank higher, and of two equal scores the longer caption must
        not rank lower: the search stops early because of this
    """
    return score


@torch.no_grad()
def beam_search(decoder, encoder_out, word_map, beam_size=3, max_len=50, rank=rank, rules=()):
    """Keep the ``beam_size`` best captions so far, for many images at once.

    All beams of all images go through the decoder as one batch. A beam that reaches <end> is put aside and its
    place closed. ``rank`` says which finished caption is best. An image leaves the batch when no beam is open, or
    when no open beam can beat its best finished caption any more: a beam's score only falls, so it can rank no higher
    than with its score of now and the longest length. Beam 1 is greedy decoding.

    :param decoder: any decoder with ``start`` and ``step``
    :param encoder_out: (batch_size, ..., encoder_dim) encoded images
    :param word_map: word -> index
    :param beam_size: captions kept per image, at least 1
    :param max_len: longest caption in words
    :param rank: which finished caption is best: :func:`rank` or another function like it
    :param rules: for the next word, see ``rules.py``
    :return: per image the best finished :class:`Hypothesis`, or the best unfinished one if none ended
    :raises FloatingPointError: the decoder's scores are not numbers
    """
    def rank_of(caption):
        return rank(caption.score, len(caption.words) + 1)

    k, n, device = beam_size, len(encoder_out), encoder_out.device
    with evaluating(decoder):
        state, memory = repeated(*decoder.start(encoder_out), k)
        words = torch.full((n * k,), word_map['<start>'], device=device)
        excluded = excluded_words(word_map)
        # (images, beams): at first one open beam, else all k would hold the same caption
        score = torch.full((n, k), -torch.inf, device=device)
        score[:, 0] = 0
        places = torch.full((n,), k, device=device)  # beams not yet finished, per image
        sequences = [Hypothesis([], 0.0, False, [], [])] * (n * k)  # per row of the batch
        image = list(range(n))  # which image k rows of the batch are of
        best = [Hypothesis([], -torch.inf, True)] * n  # the best finished caption of each image

        for t in range(max_len + 1):
            scores, state, alpha = decoder.step(words, state, memory)
            log_probs = apply_rules(word_log_probs(scores, excluded), rules, [one.words for one in sequences])
            vocab_size = log_probs.size(1)

            candidates = (score.unsqueeze(2) + log_probs.view(-1, k, vocab_size)).flatten(1)
            new_score, index = candidates.topk(k, dim=1)
            # the places of finished beams are closed: only the best `places` candidates count
            new_score = new_score.masked_fill(torch.arange(k, device=device) >= places.unsqueeze(1), -torch.inf)
            words = (index % vocab_size).flatten()
            rows = (index // vocab_size + torch.arange(0, len(score) * k, k, device=device).unsqueeze(1)).flatten()

            alphas = [None] * len(rows) if alpha is None else alpha.unbind()
            probabilities = log_probs[rows, words].exp().tolist()
            longer = [_longer(sequences[row], word, total, word == word_map['<end>'], alphas[row], probability)
                      for row, word, total, probability in zip(
                          rows.tolist(), words.tolist(), new_score.flatten().tolist(), probabilities, strict=True)]
            ended = (words.view(-1, k) == word_map['<end>']) & new_score.isfinite()
            for row in ended.flatten().nonzero().flatten().tolist():
                best[image[row // k]] = max(best[image[row // k]], longer[row], key=rank_of)
            if t == max_len:  # no room for another word: who has not ended by now stays unfinished
                break

            sequences, score, places = longer, new_score.masked_fill(ended, -torch.inf), places - ended.sum(dim=1)
            state = tuple(s[rows] for s in state)
            stay = [row for row, (i, top) in enumerate(zip(image, score.max(dim=1).values.tolist(), strict=True))
                    if rank(top, max_len + 1) > rank_of(best[i])]
            if not stay:
                break
            if len(stay) < len(image):
                image, score, places = [image[row] for row in stay], score[stay], places[stay]
                kept = [row * k + beam for row in stay for beam in range(k)]
                words, sequences = words[kept], [sequences[row] for row in kept]
                state, memory = (tuple(tensor[kept] for tensor in tensors) for tensors in (state, memory))

    for row, i in enumerate(image):
        if best[i].score == -torch.inf:
            best[i] = max(sequences[row * k:(row + 1) * k], key=lambda caption: caption.score)
    return [replace(caption, alphas=_stacked(caption.alphas, len(caption.words))) for caption in best]


def _stacked(alphas, length):
    """(length, num_pixels), or None without attention."""
    return None if not alphas or alphas[0] is None else torch.stack(alphas)[:length].cpu()


def _longer(caption, word, score, finished, alpha, probability):
    """A caption with one word more, or finished; its alphas are a list, that of <end> included."""
    alphas = [*caption.alphas, alpha]
    if finished:
        return Hypothesis(caption.words, score, True, alphas, caption.probabilities)
    return Hypothesis([*caption.words, word], score, False, alphas, [*caption.probabilities, probability])
