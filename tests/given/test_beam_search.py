"""Beam search for many images at once against a textbook search of one, and against trying all captions."""

from itertools import product
from math import log

import pytest
import torch
from torch import nn

from lab.decode.beam_search import beam_search, greedy_search, sample_search
from models import DecoderWithAttention, DecoderWithRNN

PAD, START, END, UNK = 0, 5, 2, 9  # scattered on purpose
VOCAB, ENCODER, PIXELS = 13, 6, 8


SPECIAL = {PAD: '<pad>', START: '<start>', END: '<end>', UNK: '<unk>'}
WORD_MAP = {SPECIAL.get(i, f'word{i}'): i for i in range(VOCAB)}


# ------------------------------------------------------------------------------------ other searches


def log_probabilities(scores):
    log_probs = scores.float().log_softmax(dim=1)[0]
    log_probs[[PAD, START, UNK]] = -torch.inf
    return log_probs.tolist()


@torch.no_grad()
def textbook_search(decoder, encoder_out, k, max_len):
    """Beam search of one image with plain lists: (words, score, finished)."""
    state, memory = decoder.start(encoder_out)
    beams, finished, places = [([], 0.0, state)], [], k
    for length in range(max_len + 1):
        candidates = []
        for words, score, state in beams:
            latest = torch.tensor([words[-1] if words else START])
            scores, new_state, _ = decoder.step(latest, state, memory)
            for word, log_prob in enumerate(log_probabilities(scores)):
                if log_prob > -torch.inf:
                    candidates.append(([*words, word], score + log_prob, new_state))
        candidates.sort(key=lambda candidate: -candidate[1])
        best = candidates[:places]
        finished += [(words[:-1], score, True) for words, score, _ in best if words[-1] == END]
        if length == max_len:
            break
        beams = [beam for beam in best if beam[0][-1] != END]
        places = k - len(finished)
        if not beams:
            break
    if finished:
        return max(finished, key=lambda caption: caption[1])
    words, score, _ = max(beams, key=lambda beam: beam[1])
    return words, score, False


@torch.no_grad()
def score_of(decoder, encoder_out, words, finished):
    """Log-probability of a caption of one image, its alphas, and each word's probability, by reading it."""
    state, memory = decoder.start(encoder_out)
    total, alphas, probabilities, latest = 0.0, [], [], START
    for word in [*words, END] if finished else words:
        scores, state, alpha = decoder.step(torch.tensor([latest]), state, memory)
        total += scores.float().log_softmax(dim=1)[0, word].item()
        probabilities.append(scores.float().softmax(dim=1)[0, word].item())
        alphas.append(alpha)
        latest = word
    return total, alphas[:len(words)], probabilities[:len(words)]


# ------------------------------------------------------------------------------------ decoders


def network(kind, seed, end_bias=0.0, vocab_size=VOCAB, forgetful=False):
    """A real decoder with random weights, large enough that one word changes what comes next."""
    torch.manual_seed(seed)
    sizes = dict(embed_dim=7, decoder_dim=10, vocab_size=vocab_size, encoder_dim=ENCODER)
    decoder = DecoderWithRNN(**sizes) if kind == 'rnn' else DecoderWithAttention(attention_dim=9, **sizes)
    decoder = decoder.double().eval()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 1.5 if name in ('embedding.weight', 'fc.weight') else 0.7)
        decoder.fc.bias[END] += end_bias
    return decoder


class History(nn.Module):
    """Scores depend on the image and on every word so far, in order; the state is the history itself."""

    def __init__(self, seed, end_bias=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(ENCODER + 30, VOCAB, generator=generator).double()
        self.end_bias = end_bias

    def start(self, encoder_out):
        n = len(encoder_out)
        return (torch.zeros(n, 0, dtype=torch.double), torch.zeros(n, 1)), (encoder_out.mean(dim=1),)

    def step(self, words, state, memory):
        history, steps = state
        history = torch.cat([history, words.unsqueeze(1).double()], dim=1)
        places = torch.arange(1, history.size(1) + 1)
        seen = torch.sin(history * 1.7 + places * 0.9)
        scores = memory[0] @ self.weights[:ENCODER]
        scores = scores + 2 * seen @ self.weights[ENCODER:ENCODER + history.size(1)]
        scores[:, END] += self.end_bias + 1.5 * steps[:, 0]
        return scores, (history, steps + 1), None


class Table(nn.Module):
    """Probabilities of the next word from a table: {latest word: {next word: probability}}, one per image."""

    def __init__(self, *tables):
        super().__init__()
        # words that are in no table are never read
        self.probabilities = torch.full((len(tables), VOCAB, VOCAB), 1 / VOCAB)
        for i, table in enumerate(tables):
            for latest, following in table.items():
                self.probabilities[i, latest] = 0
                for word, probability in following.items():
                    self.probabilities[i, latest, word] = probability

    def start(self, encoder_out):
        return (), (encoder_out[:, 0, 0].long(),)  # the "picture" is the table's number

    def step(self, words, state, memory):
        # one pixel per word of the vocabulary: the attention is on the latest word
        alpha = nn.functional.one_hot(words, VOCAB).double()
        return self.probabilities[memory[0], words].log(), state, alpha


def numbers(n):
    return torch.arange(n, dtype=torch.double).view(n, 1, 1)


def pictures(n, seed=0):
    return 3 * torch.randn(n, PIXELS, ENCODER, generator=torch.Generator().manual_seed(seed)).double()


def check_against_textbook(decoder, encoder_out, k, max_len):
    found = beam_search(decoder, encoder_out, WORD_MAP, k, max_len)
    assert len(found) == len(encoder_out)
    for i, caption in enumerate(found):
        words, score, finished = textbook_search(decoder, encoder_out[i:i + 1], k, max_len)
        assert (caption.words, caption.finished) == (words, finished), f'image {i}, beam {k}'
        assert caption.score == pytest.approx(score, abs=1e-4)
        assert not {PAD, START, UNK, END} & set(caption.words) and len(caption.words) <= max_len
        assert finished or len(caption.words) == max_len
    return found


# ------------------------------------------------------------------------------------ against the textbook

MAKERS = {'rnn': lambda *args: network('rnn', *args), 'attention': lambda *args: network('attention', *args),
          'history': History}
# how much likelier <end> is: captions end early, at different times, never
ENDINGS = {'early': {'rnn': 5, 'attention': 5, 'history': 20},
           'mixed': {'rnn': 0, 'attention': 0, 'history': -4},
           'never': {'rnn': -60, 'attention': -60, 'history': -90}}


@pytest.mark.parametrize('ending', ENDINGS)
@pytest.mark.parametrize('kind', MAKERS)
def test_batch_equals_textbook(kind, ending):
    lengths, finished = set(), set()
    for seed in range(8):
        decoder = MAKERS[kind](seed, ENDINGS[ending][kind])
        for k in range(1, 8):
            for caption in check_against_textbook(decoder, pictures(6, seed), k, max_len=7):
                lengths.add(len(caption.words))
                finished.add(caption.finished)
    # the models must be what they are called
    if ending == 'early':
        assert finished == {True} and min(lengths) <= 1 and max(lengths) <= 4
    elif ending == 'mixed':
        assert True in finished and len(lengths) >= 4
    else:
        assert finished == {False} and lengths == {7}


@pytest.mark.parametrize('kind', MAKERS)
def test_one_long_and_one_empty_caption(kind):
    decoder = MAKERS[kind](1, ENDINGS['mixed'][kind])
    for max_len in (1, 2, 20):
        for k in (1, 2, 5):
            check_against_textbook(decoder, pictures(8, 3), k, max_len)


# ------------------------------------------------------------------------------------ cases to follow by hand

A, B, C = 1, 3, 4
# The likelier first word leads nowhere in particular: greedy falls for it, two beams do not.
TRAP = {START: {A: 0.55, B: 0.4, C: 0.05}, A: {A: 0.3, B: 0.35, C: 0.2, END: 0.15}, B: {C: 0.1, END: 0.9},
        C: {C: 0.2, END: 0.8}}
# Ends at once, and all other ends are worse.
SHORT = {START: {END: 0.7, A: 0.2, B: 0.1}, A: {END: 0.5, A: 0.5}, B: {END: 0.5, A: 0.5}}
# Never ends.
ENDLESS = {START: {A: 0.9, B: 0.1}, A: {B: 0.8, A: 0.2}, B: {A: 0.6, B: 0.4}}
# The best caption needs three beams: after two words it is third.
LATE = {START: {A: 0.45, B: 0.35, C: 0.2}, A: {A: 0.4, B: 0.4, C: 0.1, END: 0.1},
        B: {A: 0.4, B: 0.4, C: 0.15, END: 0.05}, C: {C: 0.01, END: 0.99}}
# What may not be said is likeliest.
FORBIDDEN = {START: {UNK: 0.5, PAD: 0.2, START: 0.2, A: 0.1}, A: {START: 0.6, PAD: 0.2, END: 0.15, B: 0.05},
             B: {UNK: 1.0}}


@pytest.mark.parametrize(('table', 'k', 'words', 'probability', 'finished'), [
    (TRAP, 1, [A, B], 0.55 * 0.35 * 0.9, True),
    (TRAP, 2, [B], 0.4 * 0.9, True),
    (SHORT, 1, [], 0.7, True),
    (SHORT, 3, [], 0.7, True),
    (ENDLESS, 1, [A, B, A, B], 0.9 * 0.8 * 0.6 * 0.8, False),
    (ENDLESS, 4, [A, B, A, B], 0.9 * 0.8 * 0.6 * 0.8, False),
    (LATE, 3, [C], 0.2 * 0.99, True),
    (FORBIDDEN, 1, [A], 0.1 * 0.15, True),
    (FORBIDDEN, 3, [A], 0.1 * 0.15, True),
])
def test_by_hand(table, k, words, probability, finished):
    found, = beam_search(Table(table), numbers(1), WORD_MAP, k, max_len=4)
    assert (found.words, found.finished) == (words, finished)
    assert found.score == pytest.approx(log(probability), abs=1e-5)
    read = nn.functional.one_hot(torch.tensor([START, *words][:len(words)], dtype=torch.long), VOCAB)
    assert torch.equal(found.alphas, read.double())


@pytest.mark.parametrize('k', range(1, 8))
def test_by_hand_in_one_batch(k):
    decoder = Table(TRAP, SHORT, ENDLESS, LATE, FORBIDDEN)
    check_against_textbook(decoder, numbers(5), k, max_len=4)


def test_a_finished_beam_closes_its_place():
    # <end> takes one of two places at once: only A B goes on, and A C with 0.288 is not found
    table = {START: {A: 0.6, END: 0.25, B: 0.15}, A: {B: 0.52, C: 0.48}, B: {END: 0.1, A: 0.9}, C: {END: 1.0}}
    two, three = [beam_search(Table(table), numbers(1), WORD_MAP, k, max_len=6)[0] for k in (2, 3)]
    assert (two.words, three.words) == ([], [A, C])
    assert (two.score, three.score) == pytest.approx((log(0.25), log(0.6 * 0.48)), abs=1e-5)


def test_a_caption_that_ends_later_can_win():
    # the first to end has 0.3, the one that goes on ends with 0.54
    table = {START: {A: 0.6, END: 0.3, B: 0.1}, A: {B: 0.95, END: 0.05}, B: {END: 0.95, B: 0.05}}
    found, = beam_search(Table(table), numbers(1), WORD_MAP, 2, max_len=5)
    assert found.words == [A, B] and found.score == pytest.approx(log(0.6 * 0.95 * 0.95), abs=1e-5)


# ------------------------------------------------------------------------------------ what must always hold


@pytest.mark.parametrize('kind', MAKERS)
@pytest.mark.parametrize('ending', ENDINGS)
def test_beam_1_is_greedy(kind, ending):
    for seed in range(6):
        decoder = MAKERS[kind](seed, ENDINGS[ending][kind])
        for max_len in (1, 5, 12):
            beam = beam_search(decoder, pictures(7, seed), WORD_MAP, 1, max_len)
            greedy = greedy_search(decoder, pictures(7, seed), WORD_MAP, max_len)
            assert [(b.words, b.finished) for b in beam] == [(g.words, g.finished) for g in greedy]
            assert [b.score for b in beam] == pytest.approx([g.score for g in greedy], abs=1e-4)


@pytest.mark.parametrize('kind', ['rnn', 'attention'])
@pytest.mark.parametrize('ending', ENDINGS)
def test_score_alphas_and_probabilities_are_those_of_the_words(kind, ending):
    decoder, encoder_out = MAKERS[kind](2, ENDINGS[ending][kind]), pictures(6, 2)
    for k in (1, 3, 6):
        for i, caption in enumerate(beam_search(decoder, encoder_out, WORD_MAP, k, max_len=6)):
            score, alphas, probabilities = score_of(decoder, encoder_out[i:i + 1], caption.words, caption.finished)
            assert caption.score == pytest.approx(score, abs=1e-4)
            assert caption.probabilities == pytest.approx(probabilities, abs=1e-4)
            if kind == 'rnn':
                assert caption.alphas is None
                continue
            assert caption.alphas.shape == (len(caption.words), PIXELS)
            for found, alpha in zip(caption.alphas, alphas, strict=True):
                torch.testing.assert_close(found, alpha[0])


@pytest.mark.parametrize('kind', ['rnn', 'attention'])
@pytest.mark.parametrize('end_bias', [2, 0, -60])
def test_wide_beam_finds_the_best_of_all_captions(kind, end_bias):
    three_words = {'<pad>': PAD, 'a': A, '<end>': END, 'b': B, 'c': C, '<start>': START, '<unk>': 6}
    decoder, encoder_out, max_len = network(kind, 4, end_bias, vocab_size=7), pictures(4, 4), 4
    every_caption = [list(words) for n in range(max_len + 1) for words in product((A, B, C), repeat=n)]
    for i, found in enumerate(beam_search(decoder, encoder_out, three_words, len(every_caption), max_len)):
        scores = [score_of(decoder, encoder_out[i:i + 1], words, True)[0] for words in every_caption]
        assert found.finished and found.words == every_caption[scores.index(max(scores))]
        assert found.score == pytest.approx(max(scores), abs=1e-4)


@pytest.mark.parametrize('end_bias', [0, -60])
def test_vocabulary_smaller_than_the_beam(end_bias):
    small = {'<pad>': 0, 'word': 1, '<end>': 2, '<start>': 3, '<unk>': 4}
    decoder = network('attention', 5, end_bias, vocab_size=5)
    for k in (4, 5, 6, 30):
        for found in beam_search(decoder, pictures(4, 5), small, k, max_len=6):
            assert set(found.words) <= {1} and found.finished
            assert found.alphas.shape == (len(found.words), PIXELS)


@pytest.mark.parametrize('kind', MAKERS)
def test_order_and_size_of_the_batch_do_not_matter(kind):
    decoder, encoder_out = MAKERS[kind](6, ENDINGS['mixed'][kind]), pictures(9, 6)

    def search(images):
        return [(f.words, f.finished) for f in beam_search(decoder, images, WORD_MAP, 3, 8)]

    together = search(encoder_out)
    assert len({tuple(words) for words, _ in together}) > 3
    order = torch.arange(9) * 4 % 9
    assert search(encoder_out[order]) == [together[i] for i in order]
    assert [search(encoder_out[i:i + 1])[0] for i in range(9)] == together
    assert search(encoder_out[:4]) + search(encoder_out[4:]) == together


def test_grids_and_lists_of_pixels():
    decoder, encoder_out = network('attention', 7), pictures(3)
    flat, grid = [beam_search(decoder, images, WORD_MAP, 3, 8)
                  for images in (encoder_out, encoder_out.view(3, 2, 4, ENCODER))]
    assert [f.words for f in flat] == [g.words for g in grid]


@pytest.mark.parametrize('kind', ['rnn', 'attention'])
@pytest.mark.parametrize('search', [beam_search, greedy_search])
def test_decodes_in_eval_and_leaves_the_decoder_as_it_was(kind, search):
    decoder, encoder_out = network(kind, 8), pictures(5)
    calm = [f.words for f in search(decoder, encoder_out, WORD_MAP)]
    for training in (True, False):
        decoder.train(training)
        statistics = [buffer.clone() for buffer in decoder.buffers()]
        assert [f.words for f in search(decoder, encoder_out, WORD_MAP)] == calm, 'dropout was on'
        assert decoder.training == training and decoder.dropout.training == training
        for buffer, before in zip(decoder.buffers(), statistics, strict=True):
            assert torch.equal(buffer, before)

    decoder.train()
    with pytest.raises(KeyError):
        search(decoder, encoder_out, {})
    assert decoder.training


def test_no_gradients_are_kept():
    decoder = network('attention', 9)
    encoder_out = pictures(2).requires_grad_()
    assert not any(f.alphas.requires_grad for f in beam_search(decoder, encoder_out, WORD_MAP))


@pytest.mark.parametrize('beam_size', [0, -3])
def test_no_beam_is_refused(beam_size):
    with pytest.raises(ValueError, match=f'beam_size is {beam_size}; it must be at least 1'):
        beam_search(Table(TRAP), numbers(1), WORD_MAP, beam_size)


@pytest.mark.parametrize('search', [beam_search, greedy_search])
def test_scores_that_are_no_numbers_are_refused(search):
    decoder = network('attention', 1)
    with torch.no_grad():
        decoder.fc.weight[3, 4] = torch.nan
    with pytest.raises(FloatingPointError, match='not numbers'):
        search(decoder, pictures(3), WORD_MAP)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA GPU here')
@pytest.mark.parametrize('kind', ['rnn', 'attention'])
def test_on_the_gpu_as_on_the_cpu(kind):
    decoder, encoder_out = network(kind, 3, 1), pictures(5)
    expected = beam_search(decoder, encoder_out, WORD_MAP, 3, 8)
    found = beam_search(decoder.cuda(), encoder_out.cuda(), WORD_MAP, 3, 8)
    assert [f.words for f in found] == [e.words for e in expected]
    assert [f.score for f in found] == pytest.approx([e.score for e in expected], abs=1e-4)


# ------------------------------------------------------------------------------------ sampling


def test_samples_come_as_often_as_the_decoder_says():
    table = {START: {3: 0.6, 4: 0.3, END: 0.1}, 3: {END: 0.5, 4: 0.5}, 4: {END: 1.0}}
    pictures = torch.zeros(4000, PIXELS, ENCODER)
    found = sample_search(Table(table), pictures, WORD_MAP, generator=torch.Generator().manual_seed(0))
    expected = {(): 0.1, (4,): 0.3, (3,): 0.3, (3, 4): 0.3}
    for words, probability in expected.items():
        those = [caption for caption in found if caption.words == list(words)]
        assert len(those) / 4000 == pytest.approx(probability, abs=0.03)
        assert those[0].finished and those[0].score == pytest.approx(log(probability), abs=1e-5)
    assert {tuple(caption.words) for caption in found} == set(expected)


def test_temperature():
    table = {START: {3: 0.8, 4: 0.2}, 3: {END: 1.0}, 4: {END: 1.0}}
    pictures = torch.zeros(2000, PIXELS, ENCODER)
    for temperature, share in ((1.0, 0.2), (2.0, 1 / 3), (0.5, 1 / 17), (1e-3, 0.0)):
        found = sample_search(Table(table), pictures, WORD_MAP, temperature=temperature,
                              generator=torch.Generator().manual_seed(0))
        assert sum(caption.words == [4] for caption in found) / 2000 == pytest.approx(share, abs=0.03)
        assert {round(caption.score, 3) for caption in found} <= {round(log(0.8), 3), round(log(0.2), 3)}
    with pytest.raises(ValueError, match='temperature is 0; it must be above 0'):
        sample_search(Table(table), pictures, WORD_MAP, temperature=0)
    with pytest.raises(ValueError, match='samples is 0; it must be at least 1'):
        sample_search(Table(table), pictures, WORD_MAP, samples=0)


def test_finished_images_leave_the_batch_and_keys_are_computed_once(monkeypatch):
    """Of three pictures one is done after its first word, one a little later, and one never."""
    decoder = Table(SHORT, LATE, ENDLESS)
    started, running = [], []
    start, step = decoder.start, decoder.step
    monkeypatch.setattr(decoder, 'start', lambda given: started.append(len(given)) or start(given))
    monkeypatch.setattr(decoder, 'step', lambda words, *rest: running.append(len(words)) or step(words, *rest))
    beam_search(decoder, numbers(3), WORD_MAP, 3, 9)
    assert started == [3]  # a picture's keys, not a beam's
    assert running[0] == 9 and running[1] == 6 and running[-1] == 3 and len(running) == 10
    assert running == sorted(running, reverse=True)


@pytest.mark.parametrize('kind', ['rnn', 'attention'])
def test_several_samples_of_a_picture(kind, monkeypatch):
    decoder = network(kind, seed=0)
    pictures = torch.randn(3, PIXELS, ENCODER, generator=torch.Generator().manual_seed(0)).double()
    started, running = [], []
    start, step = decoder.start, decoder.step
    monkeypatch.setattr(decoder, 'start', lambda given: started.append(len(given)) or start(given))
    monkeypatch.setattr(decoder, 'step', lambda words, *rest: running.append(len(words)) or step(words, *rest))
    found = sample_search(decoder, pictures, WORD_MAP, 6, generator=torch.Generator().manual_seed(1), samples=20)
    assert len(found) == 60 and started == [3]  # a picture's keys are computed once
    # a caption takes part until its <end>, and no longer
    assert running == [sum(len(one.words) >= t for one in found) for t in range(len(running))]
    assert running[0] == 60 > running[-1]
    for i, one in enumerate(found):
        score, *_ = score_of(decoder, pictures[i // 20].unsqueeze(0), one.words, one.finished)
        assert one.score == pytest.approx(score, abs=1e-4)
    assert len({tuple(one.words) for one in found[:20]}) > 1


@pytest.mark.parametrize('kind', ['rnn', 'attention'])
def test_samples_are_scored_as_they_are_read(kind):
    decoder = network(kind, seed=0)
    pictures = torch.randn(5, PIXELS, ENCODER, generator=torch.Generator().manual_seed(0)).double()
    sampled = sample_search(decoder, pictures, WORD_MAP, 6, generator=torch.Generator().manual_seed(1))
    for picture, found in zip(pictures, sampled, strict=True):
        score, *_ = score_of(decoder, picture.unsqueeze(0), found.words, found.finished)
        assert found.score == pytest.approx(score, abs=1e-4) and len(found.words) <= 6
    again = sample_search(decoder, pictures, WORD_MAP, 6, generator=torch.Generator().manual_seed(1))
    other = sample_search(decoder, pictures, WORD_MAP, 6, generator=torch.Generator().manual_seed(2))
    first = sample_search(decoder, pictures, WORD_MAP, 6, generator=torch.Generator().manual_seed(1))
    assert [f.words for f in first] == [f.words for f in again] != [f.words for f in other]
    cold = sample_search(decoder, pictures, WORD_MAP, 6, temperature=1e-6)
    assert [f.words for f in cold] == [f.words for f in greedy_search(decoder, pictures, WORD_MAP, 6)]


def test_scores_that_are_no_numbers_are_not_sampled():
    decoder = network('rnn', seed=0)
    with torch.no_grad():
        decoder.fc.bias[3] = torch.nan
    with pytest.raises(FloatingPointError):
        sample_search(decoder, torch.randn(2, PIXELS, ENCODER).double(), WORD_MAP)
