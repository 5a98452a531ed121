"""Beam search for many images at once against a textbook search of one, and against trying all captions; sampling."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp, log

import pytest
import torch
from test_papers import ENCODER, END, PAD, PIXELS, START, UNK, WORD_MAP, WORDS, every_decoder, make, random
from torch import nn

from lab.decode import beam_search as module
from lab.decode.beam_search import beam_search
from lab.decode.greedy_search import Hypothesis, greedy_search, sample_search

every_search = pytest.mark.parametrize('search', [beam_search, greedy_search, partial(sample_search, temperature=1e-6)])


# --- Other searches ---


@torch.no_grad()
def step(decoder, words, state, memory):
    """:return: log-probabilities of the next word (n, WORDS), new state, alpha"""
    scores, state, alpha = decoder.step(torch.tensor(words), state, memory)
    return scores.float().log_softmax(dim=1), state, alpha


def textbook_search(decoder, encoder_out, k, max_len):
    """Beam search of one image with plain lists."""
    state, memory = decoder.start(encoder_out)
    beams, finished = [(Hypothesis([], 0.0, False, [], []), state)], []
    for length in range(max_len + 1):
        candidates = []
        for one, state in beams:
            log_probs, new, alpha = step(decoder, one.words[-1:] or [START], state, memory)
            for word, log_prob in enumerate(log_probs[0].tolist()):
                if word == END:
                    candidates.append((replace(one, score=one.score + log_prob, finished=True), new))
                elif word not in (PAD, START, UNK):
                    candidates.append((Hypothesis([*one.words, word], one.score + log_prob, False, [*one.alphas, alpha],
                                                  [*one.probabilities, exp(log_prob)]), new))
        best = sorted(candidates, key=lambda candidate: -candidate[0].score)[:k - len(finished)]
        finished += [one for one, _ in best if one.finished]
        if length == max_len:
            break
        beams = [(one, state) for one, state in best if not one.finished]
    return max(finished or [one for one, _ in beams], key=lambda one: one.score)


def all_captions(decoder, encoder_out, words, max_len):
    """:return: caption of these words, a tuple -> its log-probability for each image, <end> included"""
    state, memory = decoder.start(encoder_out)
    level, found = {(): (torch.zeros(len(encoder_out)), state)}, {}
    for _ in range(max_len + 1):
        longer = {}
        for caption, (score, state) in level.items():
            log_probs, new, _ = step(decoder, [caption[-1] if caption else START] * len(encoder_out), state, memory)
            found[caption] = score + log_probs[:, END]
            longer |= {(*caption, word): (score + log_probs[:, word], new) for word in words}
        level = longer
    return found


# --- Decoders ---


def network(name, seed=0, end_bias=0.0):
    """A decoder of which one word changes what comes next, and whose captions differ."""
    decoder = make(name, seed)
    with torch.no_grad():
        for layer, factor in ((decoder.embedding, 4), (decoder.decode_step, 2), (decoder.fc, 4)):
            for weight in layer.parameters():
                weight *= factor
        decoder.fc.bias[END] += end_bias
    return decoder


class Table(nn.Module):
    """Probabilities of the next word from a table: {latest word: {next word: probability}}, one per image."""

    def __init__(self, *tables):
        super().__init__()
        # words that are in no table are never read
        self.probabilities = torch.full((len(tables), WORDS, WORDS), 1 / WORDS)
        for i, table in enumerate(tables):
            for latest, following in table.items():
                self.probabilities[i, latest] = 0
                for word, probability in following.items():
                    self.probabilities[i, latest, word] = probability

    def start(self, encoder_out):
        return (), (encoder_out[:, 0, 0].long(),)  # the "picture" is the table's number

    def step(self, words, state, memory):
        # one pixel per word of the vocabulary: the attention is on the latest word
        alpha = nn.functional.one_hot(words, WORDS).double()
        return self.probabilities[memory[0], words].log(), state, alpha


def numbers(n):
    return torch.arange(n, dtype=torch.double).view(n, 1, 1)


def pictures(n, seed=0):
    return random(n, PIXELS, ENCODER, seed=seed)


# --- Against the textbook, and against all captions ---


@pytest.mark.parametrize('ends', [True, False])
@every_decoder
def test_many_images_at_once_equal_the_textbook(name, ends):
    """Whose captions end at different times, or never. Beam 1 is greedy search."""
    lengths = set()
    for seed in range(5):
        decoder = network(name, seed, 2 if ends else -90)
        for k, max_len in ((1, 7), (4, 7), (2, seed)):
            greedy = greedy_search(decoder, pictures(5, seed), WORD_MAP, max_len)
            for i, found in enumerate(beam_search(decoder, pictures(5, seed), WORD_MAP, k, max_len)):
                expected = textbook_search(decoder, pictures(5, seed)[i:i + 1], k, max_len)
                for one in [found, greedy[i]] if k == 1 else [found]:
                    assert (one.words, one.finished) == (expected.words, expected.finished), f'image {i}, beam {k}'
                    assert one.score == pytest.approx(expected.score, abs=1e-4)
                assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-4)
                if found.alphas is not None and found.words:
                    torch.testing.assert_close(found.alphas, torch.cat(expected.alphas))
                lengths |= {len(found.words)} if max_len == 7 else set()
    assert len(lengths) >= 3 if ends else lengths == {7}  # the decoders are what they are called


@pytest.mark.parametrize('rank', [lambda score, length: score, lambda score, length: score / length],
                         ids=['sum', 'mean'])
@pytest.mark.parametrize('end_bias', [9, 3, -30])
@pytest.mark.parametrize('name', ['plain', 'attention'])
def test_a_wide_beam_finds_the_best_of_all_captions_by_any_rule(name, end_bias, rank, monkeypatch):
    """So nothing is stopped too early: by the mean a long caption may be better than a short one with a larger sum."""
    monkeypatch.setattr(module, 'rank', rank)
    decoder, words, max_len = network(name, 4, end_bias), (1, 3, 4), 4
    with torch.no_grad():
        decoder.fc.bias[[word for word in range(WORDS) if word not in (*words, END)]] = -torch.inf
    scores = all_captions(decoder, pictures(6), words, max_len)
    for i, found in enumerate(beam_search(decoder, pictures(6), WORD_MAP, 4 * len(scores), max_len)):
        best = max(scores, key=lambda caption: rank(scores[caption][i].item(), len(caption) + 1))
        assert found.finished and tuple(found.words) == best
        assert found.score == pytest.approx(scores[best][i].item(), abs=1e-4)


# --- Cases to follow by hand ---

A, B, C = 1, 3, 4
SHORT = {START: {END: 0.7, A: 0.2, B: 0.1}, A: {END: 0.5, A: 0.5}, B: {END: 0.5, A: 0.5}}
ENDLESS = {START: {A: 0.9, B: 0.1}, A: {B: 0.8, A: 0.2}, B: {A: 0.6, B: 0.4}}
# The likelier first word leads nowhere in particular: greedy falls for it, two beams do not.
TRAP = {START: {A: 0.55, B: 0.4, C: 0.05}, A: {A: 0.3, B: 0.35, C: 0.2, END: 0.15}, B: {C: 0.1, END: 0.9},
        C: {C: 0.2, END: 0.8}}
# <end> takes one of two places at once: only A B goes on, and A C is not found.
CLOSING = {START: {A: 0.6, END: 0.25, B: 0.15}, A: {B: 0.52, C: 0.48}, B: {END: 0.1, A: 0.9}, C: {END: 1.0}}
# What no caption may contain is likeliest.
FORBIDDEN = {START: {UNK: 0.5, PAD: 0.2, START: 0.2, A: 0.1}, A: {START: 0.6, PAD: 0.2, END: 0.2}}


@pytest.mark.parametrize(('table', 'k', 'words', 'probability', 'finished'), [
    (SHORT, 3, [], 0.7, True), (ENDLESS, 4, [A, B, A, B], 0.9 * 0.8 * 0.6 * 0.8, False),
    (TRAP, 1, [A, B], 0.55 * 0.35 * 0.9, True), (TRAP, 2, [B], 0.4 * 0.9, True),
    (CLOSING, 2, [], 0.25, True), (CLOSING, 3, [A, C], 0.6 * 0.48, True), (FORBIDDEN, 3, [A], 0.1 * 0.2, True)])
def test_by_hand(table, k, words, probability, finished):
    found, = beam_search(Table(table), numbers(1), WORD_MAP, k, max_len=4)
    assert (found.words, found.finished) == (words, finished)
    assert found.score == pytest.approx(log(probability), abs=1e-5)
    looked_at = nn.functional.one_hot(torch.tensor([START, *words][:len(words)], dtype=torch.long), WORDS)
    assert torch.equal(found.alphas, looked_at.double())


# --- What holds for every search ---


@every_search
def test_it_captions_without_dropout_and_leaves_the_decoder_as_it_was(search):
    decoder = network('plain', 8)
    decoder.dropout.p = 0.5
    calm, before = search(decoder, pictures(5), WORD_MAP), [value.clone() for value in decoder.state_dict().values()]
    found = search(decoder.train(), pictures(5).requires_grad_(), WORD_MAP)
    assert [one.words for one in found] == [one.words for one in calm]
    assert decoder.training and decoder.dropout.training
    assert all(map(torch.equal, before, decoder.state_dict().values()))  # batch norm's too


@every_search
def test_scores_that_are_no_numbers_are_refused(search):
    decoder = network('attention', 1)
    with torch.no_grad():
        decoder.fc.weight[3, 4] = torch.nan
    with pytest.raises(FloatingPointError):
        search(decoder, pictures(3), WORD_MAP)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA GPU here')
@every_decoder
def test_on_the_gpu_as_on_the_cpu(name):
    decoder = network(name, 3, 1)
    expected = beam_search(decoder, pictures(5), WORD_MAP, 3, 8)
    found = beam_search(decoder.cuda(), pictures(5).cuda(), WORD_MAP, 3, 8)
    assert [f.words for f in found] == [e.words for e in expected]
    assert [f.score for f in found] == pytest.approx([e.score for e in expected], abs=1e-4)


# --- Sampling ---


@pytest.mark.parametrize('temperature', [1.0, 2.0, 0.5, 1e-3])
def test_samples_come_as_often_as_the_decoder_says(temperature):
    """At temperature T as often as p to the power of 1 / T; the score is that of the decoder itself."""
    table = {START: {A: 0.6, C: 0.3, END: 0.1}, A: {END: 0.7, C: 0.3}, C: {END: 1.0}}
    found = sample_search(Table(table), numbers(1), WORD_MAP, temperature=temperature, samples=4000,
                          generator=torch.Generator().manual_seed(0))
    first, second = (torch.tensor(p).log().div(temperature).softmax(dim=0).tolist()
                     for p in ([0.6, 0.3, 0.1], [0.7, 0.3]))
    expected = {(A,): (first[0] * second[0], 0.42), (A, C): (first[0] * second[1], 0.18), (C,): (first[1], 0.3),
                (): (first[2], 0.1)}
    assert {tuple(one.words) for one in found} <= set(expected) and all(one.finished for one in found)
    for words, (frequency, probability) in expected.items():
        drawn = [one for one in found if one.words == list(words)]
        assert len(drawn) / 4000 == pytest.approx(frequency, abs=0.03)
        assert all(one.score == pytest.approx(log(probability), abs=1e-5) for one in drawn)
    with pytest.raises(ValueError, match='temperature is 0'):
        sample_search(Table(table), numbers(1), WORD_MAP, temperature=0)


@pytest.mark.parametrize('name', ['plain', 'attention'])
def test_samples_of_a_picture_are_side_by_side_and_scored_as_they_are_read(name):
    decoder = network(name)
    found = sample_search(decoder, pictures(3), WORD_MAP, 6, samples=20, generator=torch.Generator().manual_seed(1))
    assert len(found) == 60
    for i, one in enumerate(found):
        score, (state, memory) = 0.0, decoder.start(pictures(3)[i // 20:][:1])
        for before, word in pairwise([START, *one.words] + [END] * one.finished):
            log_probs, state, _ = step(decoder, [before], state, memory)
            score += log_probs[0, word].item()
        assert one.score == pytest.approx(score, abs=1e-4) and len(one.words) <= 6
    assert all(len({tuple(one.words) for one in found[i:i + 20]}) > 1 for i in (0, 20, 40))
