"""Beam search, for any decoder with the two methods of ``greedy_search.py``."""

import torch

from lab.decode.greedy_search import NOT_NUMBERS, Hypothesis, excluded_words, repeated
from utils import evaluating


def rank(score, length):
    """What decides between captions: the sum of their log-probabilities, as in both papers, whatever their length.

    :param score: sum of log-probabilities, a number or a tensor
    :param length: number of words, <end> counted
    :return: the larger, the better. It must grow with ``score`` and, where that is the same, not fall with ``length``
    """
    return score


@torch.no_grad()
def beam_search(decoder, encoder_out, word_map, beam_size=3, max_len=50):
    """Keep the ``beam_size`` best captions so far, for many images at once.

    All beams of all images go through the decoder as one batch. A beam that reaches <end> is put aside and its
    place closed; an image leaves the batch when no open beam can beat its best finished caption any more, however long
    it grows (its score only falls), or when no beam is open. :func:`rank` says which finished caption is best. Beam 1
    is greedy decoding.

    :param decoder: any decoder with ``start`` and ``step``
    :param encoder_out: (batch_size, ..., encoder_dim) encoded images
    :param word_map: word -> index
    :param beam_size: captions kept per image, at least 1
    :param max_len: longest caption in words
    :return: per image the best finished :class:`Hypothesis`, or the best unfinished one if none ended
    :raises ValueError: beam_size < 1
    :raises FloatingPointError: the decoder's scores are not numbers
    """
    if beam_size < 1:
        raise ValueError(f'beam_size is {beam_size}; it must be at least 1')
    k, end = beam_size, word_map['<end>']
    with evaluating(decoder):
        n = len(encoder_out)
        state, memory = repeated(*decoder.start(encoder_out), k)
        device = encoder_out.device
        excluded = excluded_words(word_map, device)
        words = torch.full((n * k,), word_map['<start>'], device=device)
        # (images, beams): at first one open beam, else all k would hold the same caption
        score = torch.full((n, k), -torch.inf, device=device)
        score[:, 0] = 0
        places = torch.full((n,), k, device=device)  # beams not yet finished, per image
        sequences = torch.empty(n, k, 0, dtype=torch.long, device=device)
        steps = torch.empty(n, k, 0, device=device)  # log-probability of each word
        alphas = None
        image = list(range(n))  # which image a row of the batch is
        best = [None] * n

        for t in range(max_len + 1):
            scores, state, alpha = decoder.step(words, state, memory)
            log_probs = scores.float().log_softmax(dim=1)
            log_probs[:, excluded] = -torch.inf
            vocab_size = log_probs.size(1)
            before = score, sequences, steps, alphas

            candidates = (score.unsqueeze(2) + log_probs.view(-1, k, vocab_size)).flatten(1)
            score, index = candidates.topk(k, dim=1)
            beam, word = index // vocab_size, index % vocab_size
            # the places of finished beams are closed: only the best `places` candidates count
            score = score.masked_fill(torch.arange(k, device=device) >= places.unsqueeze(1), -torch.inf)

            rows = torch.arange(len(image), device=device).unsqueeze(1)
            sequences = torch.cat([sequences[rows, beam], word.unsqueeze(2)], dim=2)
            step = log_probs.view(len(image), -1).gather(1, index)
            steps = torch.cat([steps[rows, beam], step.unsqueeze(2)], dim=2)
            if alpha is not None:
                alpha = alpha.view(len(image), k, 1, -1)[rows, beam]
                alphas = alpha if alphas is None else torch.cat([alphas[rows, beam], alpha], dim=2)

            ended = (word == end) & score.isfinite()
            for row, j in ended.nonzero().tolist():
                _keep_best(best, image[row], score[row, j].item(), True, sequences[row, j, :-1], steps, alphas, row, j)
            if t == max_len:  # no room for another word: who has not ended by now stays unfinished
                break
            places = places - ended.sum(dim=1)
            score = score.masked_fill(ended, -torch.inf)

            flat = (rows * k + beam).flatten()
            state = tuple(s[flat] for s in state)
            words = word.flatten()

            best_rank = torch.tensor([rank_of(best[i]) for i in image], device=device)
            stay = rank(score.max(dim=1).values, max_len + 1) > best_rank
            if stay.all():
                continue
            image = [i for i, kept in zip(image, stay.tolist(), strict=True) if kept]
            if not image:
                break
            score, places, sequences, steps = score[stay], places[stay], sequences[stay], steps[stay]
            alphas = alphas[stay] if alphas is not None else None
            of_beams = stay.repeat_interleave(k)
            words, state = words[of_beams], tuple(s[of_beams] for s in state)
            memory = tuple(m[of_beams] for m in memory)

        score, sequences, steps, alphas = before
        for row, i in enumerate(image):
            if best[i] is None:
                j = int(score[row].argmax())
                _keep_best(best, i, score[row, j].item(), False, sequences[row, j], steps, alphas, row, j)
    if None in best:
        raise FloatingPointError(NOT_NUMBERS)
    return best


def rank_of(hypothesis):
    """:func:`rank` of a caption; of none it is the lowest."""
    if hypothesis is None:
        return -torch.inf
    return rank(hypothesis.score, len(hypothesis.words) + hypothesis.finished)


def _keep_best(best, i, score, finished, words, steps, alphas, row, j):
    """Make a caption the best of image ``i`` if it ranks above the best so far."""
    kept = alphas[row, j, :len(words)].cpu() if alphas is not None else None
    found = Hypothesis(words.tolist(), score, finished, kept, steps[row, j, :len(words)].exp().tolist())
    if rank_of(found) > rank_of(best[i]):
        best[i] = found
