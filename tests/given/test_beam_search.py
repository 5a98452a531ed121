"""Beam search for many images at once against a textbook search of one; sampling."""

from dataclasses import replace
from functools import partial
from math import exp, log

import pytest
import torch
from test_papers import ENCODER, END, PAD, PIXELS, START, UNK, WORD_MAP, WORDS, every_decoder, make, random
from torch import nn

from lab.decode.beam_search import beam_search, rank
from lab.decode.greedy_search import Hypothesis, greedy_search, sample_search
from lab.decode.rules import length_normalised, no_repeat_ngram, nucleus, sampling, temperature, top_k

every_search = pytest.mark.parametrize('search', [
    beam_search, greedy_search, partial(sample_search, rules=[temperature(1e-6)])])


# --- A textbook search ---


@torch.no_grad()
def textbook_search(decoder, encoder_out, k, max_len, rank):
    """Beam search of one image with plain lists, which never stops early."""
    state, memory = decoder.start(encoder_out)
    beams, finished = [(Hypothesis([], 0.0, False, [], []), state)], []
    for length in range(max_len + 1):
        candidates = []
        for one, state in beams:
            scores, new, alpha = decoder.step(torch.tensor(one.words[-1:] or [START]), state, memory)
            for word, log_prob in enumerate(scores[0].float().log_softmax(dim=0).tolist()):
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
    return max(finished or [one for one, _ in beams], key=lambda one: rank(one.score, len(one.words) + 1))


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
    """Probabilities of the next word from a table: {latest word: {next word: probability}}."""

    def __init__(self, table):
        super().__init__()
        self.probabilities = torch.zeros(WORDS, WORDS)
        for latest, following in table.items():
            for word, probability in following.items():
                self.probabilities[latest, word] = probability

    def start(self, encoder_out):
        return (), ()

    def step(self, words, state, memory):
        return self.probabilities[words].log(), state, None


def pictures(n, seed=0):
    return random(n, PIXELS, ENCODER, seed=seed)


# --- Against the textbook ---


@pytest.mark.parametrize('ends', [True, False])
@every_decoder
def test_many_images_at_once_equal_the_textbook(name, ends):
    """Whose captions end at different times, or never. Beam 1 is greedy search. By the mean per word the search must go
    on longer: a long caption may be better than a short one with a larger sum.
    """
    lengths = set()
    for seed in range(5):
        decoder = network(name, seed, 2 if ends else -90)
        for k, max_len, by in ((1, 7, rank), (4, 7, rank), (4, 7, length_normalised), (2, seed, rank)):
            greedy = greedy_search(decoder, pictures(5, seed), WORD_MAP, max_len)
            for i, found in enumerate(beam_search(decoder, pictures(5, seed), WORD_MAP, k, max_len, by)):
                expected = textbook_search(decoder, pictures(5, seed)[i:i + 1], k, max_len, by)
                for one in [found, greedy[i]] if k == 1 else [found]:
                    assert (one.words, one.finished) == (expected.words, expected.finished), f'image {i}, beam {k}'
                    assert one.score == pytest.approx(expected.score, abs=1e-4)
                assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-4)
                if found.alphas is not None:
                    assert found.alphas.shape == (len(found.words), PIXELS)
                    torch.testing.assert_close(found.alphas, torch.cat([found.alphas[:0], *expected.alphas]))
                lengths |= {len(found.words)} if max_len == 7 else set()
    assert len(lengths) >= 3 if ends else lengths == {7}  # the decoders are what they are called


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
    decoder, images = network('attention', 1), pictures(3)
    images[1] = torch.nan
    with pytest.raises(FloatingPointError):
        search(decoder, images, WORD_MAP)


def test_one_step_without_keys_is_right_as_well(monkeypatch):
    """As a student may write it."""
    decoder = network('attention', 1)
    expected, own = beam_search(decoder, pictures(5), WORD_MAP, 3, 8), decoder.one_step
    monkeypatch.setattr(decoder, 'one_step', lambda x, encoder_out, h, c: own(x, encoder_out, h, c))
    assert [one.words for one in beam_search(decoder, pictures(5), WORD_MAP, 3, 8)] == [one.words for one in expected]


@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA GPU here')
@every_decoder
def test_on_the_gpu_as_on_the_cpu(name):
    decoder = network(name, 3, 1)
    expected = beam_search(decoder, pictures(5), WORD_MAP, 3, 8)
    found = beam_search(decoder.cuda(), pictures(5).cuda(), WORD_MAP, 3, 8)
    assert [f.words for f in found] == [e.words for e in expected]
    assert [f.score for f in found] == pytest.approx([e.score for e in expected], abs=1e-4)


# --- Sampling, and rules ---


FIRST = {1: 0.5, 3: 0.3, 4: 0.15, END: 0.05}


@pytest.mark.parametrize(('rules', 'expected'), [
    ([], FIRST), ([top_k(2)], {1: 0.5 / 0.8, 3: 0.3 / 0.8}), ([top_k(1)], {1: 1}), ([top_k(9)], FIRST),
    ([nucleus(0.79)], {1: 0.5 / 0.8, 3: 0.3 / 0.8}), ([nucleus(0.1)], {1: 1}),
    ([nucleus(0.81)], {1: 0.5 / 0.95, 3: 0.3 / 0.95, 4: 0.15 / 0.95}),
    ([temperature(0.5)], {1: 0.25 / 0.365, 3: 0.09 / 0.365, 4: 0.0225 / 0.365, END: 0.0025 / 0.365}),
    ([temperature(0.5), top_k(2)], {1: 0.25 / 0.34, 3: 0.09 / 0.34}),
    ([top_k(1), lambda log_probs, _: log_probs.index_fill(1, torch.tensor(1), -torch.inf)], {1: 1})])
def test_words_come_as_often_as_decoder_and_rules_say(rules, expected):
    """First words, or the end at once; the caption's score is that of the decoder itself."""
    decoder = Table({START: FIRST, **{word: {END: 1.0} for word in FIRST}})
    found = sample_search(decoder, pictures(1), WORD_MAP, samples=4000, rules=rules,
                          generator=torch.Generator().manual_seed(0))
    firsts = [one.words[0] if one.words else END for one in found]
    assert set(firsts) == set(expected) and all(len(one.words) < 2 and one.finished for one in found)
    for word, probability in expected.items():
        of_word = [one for one, first in zip(found, firsts, strict=True) if first == word]
        assert len(of_word) / 4000 == pytest.approx(probability, abs=0.03)
        assert all(one.score == pytest.approx(log(FIRST[word]), abs=1e-5) for one in of_word)


@pytest.mark.parametrize('search', [partial(beam_search, beam_size=2), partial(sample_search, samples=5)])
@pytest.mark.parametrize('n', [2, 3])
def test_no_words_in_a_row_twice(search, n):
    """By a decoder that goes in a circle. A word alone may come again."""
    decoder = Table({START: {1: 0.9, 3: 0.1}, 1: {3: 0.98, END: 0.02}, 3: {1: 0.96, 4: 0.02, END: 0.02},
                     4: {1: 0.9, END: 0.1}})

    def repeats(words):
        rows = [tuple(words[i:i + n]) for i in range(len(words) - n + 1)]
        return len(rows) - len(set(rows))

    free, ruled = (search(decoder, pictures(2), WORD_MAP, max_len=12, rules=own) for own in ([], [no_repeat_ngram(n)]))
    assert any(repeats(one.words) for one in free) and not any(repeats(one.words) for one in ruled)
    assert any(len({*one.words}) < len(one.words) for one in ruled)


def test_the_mean_per_word_prefers_longer_captions():
    decoder = Table({**{word: {END: 1.0} for word in range(WORDS)}, START: {1: 0.4, END: 0.6}, 1: {3: 0.9, END: 0.1}})
    for by, words in ((rank, []), (length_normalised, [1, 3])):
        assert beam_search(decoder, pictures(1), WORD_MAP, 3, rank=by)[0].words == words


def test_sampling_has_the_parameters_of_a_beam_search():
    """The same seed gives the same captions, and the next batch other ones."""
    decoder = network('attention', 1, 1)
    searches = [sampling(temperature(2), seed=seed) for seed in (0, 0, 1)]
    one, again, other = ([[found.words for found in search(decoder, pictures(6), WORD_MAP, 3, 5)] for _ in range(2)]
                         for search in searches)
    assert one == again != other and one[0] != one[1] and max(map(len, one[0])) <= 5
    with pytest.raises(ValueError, match='temperature is 0'):
        temperature(0)
