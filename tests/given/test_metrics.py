"""BLEU against cases worked out by hand and published figures; the small helpers of utils.py."""

import errno
import json
import math
import os
import random

import numpy as np
import pytest
import torch

from lab.decode.metrics import bleu, caption_bleu, choose_captions
from utils import AverageMeter, atomic_path, seed_everything, topk_accuracy


def scores(references, hypotheses):
    """BLEU-1 to 4 of captions given as text: per image (references, hypothesis)."""
    found = bleu([[reference.split() for reference in image] for image in references],
                 [hypothesis.split() for hypothesis in hypotheses])
    assert list(found) == ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4']
    assert all(type(score) is float for score in found.values())
    return list(found.values())


# ------------------------------------------------------------------------------------ BLEU


def test_published_figures(shared_data):
    folder = shared_data / 'metrics'
    expected = json.loads((folder / 'expected.json').read_text())
    hypotheses, first, second = [(folder / name).read_text().splitlines()
                                 for name in ('hyp.txt', 'ref1.txt', 'ref2.txt')]
    found = scores(list(zip(first, second, strict=True)), hypotheses)
    assert found == pytest.approx([expected[f'BLEU-{n}'] for n in (1, 2, 3, 4)], abs=1e-6)


def test_the_same_words_score_one():
    sentence = 'a red circle is left of a blue square'
    assert scores([[sentence, 'something else']], [sentence]) == pytest.approx([1] * 4)


def test_each_order_by_hand():
    # right: 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; as long as the reference
    found = scores([['a red circle on top']], ['a red circle on ground'])
    products = [4 / 5, 4 / 5 * 3 / 4, 4 / 5 * 3 / 4 * 2 / 3, 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2]
    assert found == pytest.approx([product ** (1 / n) for n, product in enumerate(products, 1)])


def test_repeated_words_count_once():
    # the example of Papineni et al.: "the" stands at most twice in a reference
    found = scores([['the cat is on the mat', 'there is a cat on the mat']], ['the the the the the the the'])
    assert found[0] == pytest.approx(2 / 7)
    assert found[1:] == pytest.approx([0] * 3, abs=1e-6)


def test_short_captions_pay():
    assert scores([['a b c d e f g h']], ['a b c d e'])[3] == pytest.approx(math.exp(1 - 8 / 5))
    # the reference of the closest length counts, and longer captions pay nothing more
    closest = scores([['a b c d e f g h', 'a b c d e x']], ['a b c d e'])[0]
    assert closest == pytest.approx(math.exp(1 - 6 / 5))
    assert scores([['a b c d']], ['a b c d e'])[0] == pytest.approx(4 / 5)


def test_counts_are_summed_over_images():
    # 5 of 5 words and 1 of 4: 6 of 9, not the mean of 1 and 1 / 4
    found = scores([['a b c d e'], ['f g h i']], ['a b c d e', 'f x y z'])
    assert found[0] == pytest.approx(6 / 9)
    assert found[3] == pytest.approx((6 / 9 * 4 / 7 * 3 / 5 * 2 / 3) ** (1 / 4))


def test_references_belong_to_their_image():
    assert scores([['a b c d'], ['e f g h']], ['e f g h', 'a b c d']) == pytest.approx([0] * 4, abs=1e-6)


def test_without_a_right_n_gram_it_is_as_good_as_zero():
    found = scores([['a b c d e f']], ['a b x d e'])
    assert found[1] > 0.3 and found[2:] == pytest.approx([0, 0], abs=1e-4)


def test_a_short_caption_has_no_4_gram():
    """0 of 0, not 0 of 1 (Papineni et al. 2002)."""
    for short in ('a', 'a dog', 'a red circle'):
        captions = [short] * 9 + ['a dog runs on the grass']
        assert scores([[caption] for caption in captions], captions) == pytest.approx([1] * 4)
        assert caption_bleu([short.split(), ['x'] * 9], short.split()) == (pytest.approx(1), short.split())


def test_equal_to_pycocoevalcap_on_any_captions():
    Bleu, rng = pytest.importorskip('pycocoevalcap.bleu.bleu').Bleu, random.Random(0)
    for _ in range(200):
        words = 'abcdefgh'[:rng.randint(1, 8)]
        draw = lambda least=0: ' '.join(rng.choices(words, k=rng.randint(least, 9)))  # noqa: B023
        references = [[draw(1) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 5))]
        captions = [draw() for _ in references]
        expected, _ = Bleu(4).compute_score(dict(enumerate(references)), {i: [c] for i, c in enumerate(captions)}, 0)
        assert scores(references, captions) == pytest.approx(expected, abs=1e-12)


def test_empty_captions_do_not_crash(recwarn):
    assert scores([['a b c d e'], ['f g']], ['', '']) == pytest.approx([0] * 4, abs=1e-6)
    assert scores([['a b c d e f']], ['a b']) == pytest.approx([math.exp(1 - 6 / 2)] * 2 + [0] * 2, abs=2e-3)
    # one of two is empty: all its words are missing
    for score in scores([['a b c d'], ['e f g h']], ['a b c d', '']):
        assert 0.2 < score <= math.exp(1 - 8 / 4)
    assert not recwarn.list, 'a first epoch without a right 4-gram is no reason to warn'


@pytest.mark.parametrize(('references', 'hypotheses'), [
    ([[['a']]], []), ([[['a']], [['b']]], [['a']]), ([[['a']]], [['a'], ['b']]), ([], [])])
def test_one_caption_per_image(references, hypotheses):
    message = f'{len(hypotheses)} captions, {len(references)} images'
    with pytest.raises(ValueError, match=f'one caption per image: {message}'):
        bleu(references, hypotheses)


# ------------------------------------------------------------------------------------ utils


def test_atomic_path_writes(tmp_path):
    path = tmp_path / 'new' / 'folder' / 'file.txt'
    for text in ('old', 'new'):
        with atomic_path(path) as temporary:
            temporary.write_text(text)
            assert temporary != path and temporary.parent == path.parent
            assert (path.read_text() if path.exists() else None) == (None if text == 'old' else 'old')
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize('error', [RuntimeError, KeyboardInterrupt])
def test_atomic_path_leaves_the_old_file_on_an_error(tmp_path, error):
    path = tmp_path / 'file.txt'
    path.write_text('old')
    with pytest.raises(error), atomic_path(str(path)) as temporary:
        temporary.write_text('half')
        raise error
    assert path.read_text() == 'old' and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('hidden', [False, True])
@pytest.mark.parametrize('number', [errno.ENOSPC, errno.EDQUOT])
def test_atomic_path_says_that_the_disk_is_full(tmp_path, number, hidden):
    """Also where torch.save hides it behind an error of its own."""
    path = tmp_path / 'file.txt'
    path.write_text('old')
    with pytest.raises(OSError, match=r'file.txt cannot be written \(.*\): make room on the disk'):
        with atomic_path(path) as temporary:
            temporary.write_text('half')
            try:
                raise OSError(number, os.strerror(number))
            finally:
                if hidden:
                    raise RuntimeError('unexpected pos')
    assert path.read_text() == 'old' and list(tmp_path.iterdir()) == [path]


def test_atomic_path_leaves_nothing_on_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / 'file.txt'):
        raise ZeroDivisionError  # before anything was written
    assert not list(tmp_path.iterdir())


def test_topk_accuracy():
    rows = torch.tensor([[0.1, 0.9, 0.3, 0.2], [0.8, 0.1, 0.6, 0.7],
                         [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    targets = torch.tensor([1, 0, 2, 2])  # best, best, third and second best
    assert [topk_accuracy(rows, targets, k) for k in (1, 2, 3, 4)] == [50, 75, 100, 100]
    assert topk_accuracy(rows, targets, 9) == 100  # more than there are words


def test_average_meter():
    meter = AverageMeter()
    assert meter.avg == 0
    meter.update(2.0)
    meter.update(5.0, n=3)
    assert (meter.val, meter.sum, meter.count, meter.avg) == (5.0, 17.0, 4, 4.25)


def test_seed_everything():
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()
    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_caption_bleu():
    references = ['a dog runs over the wet grass'.split(), 'a brown dog is running'.split()]
    score, closest = caption_bleu(references, 'a brown dog runs over the grass'.split())
    assert 0 < score < 1 and closest == references[0]
    assert caption_bleu(references, references[1]) == (pytest.approx(1), references[1])
    worse, closest = caption_bleu(references, 'a brown dog is here'.split())
    assert worse < 1 and closest == references[1]
    assert caption_bleu(references, [])[0] == 0


def test_best_typical_and_worst_captions():
    scores = [0.9, 0.1, 0.5, 0.8, 0.55, 0.2, 0.4]
    assert choose_captions(scores, count=2) == dict(best=[0, 3], typical=[2, 4], worst=[1, 5])
    # 1 and 5 are true, though few people would say so; 0 is wrong, though nearly all of its words are right
    assert choose_captions(scores, wrong=[0, 2, 4], count=2) == dict(best=[3, 6], typical=[5, 1], worst=[2, 4])
    assert choose_captions(scores, wrong=[], count=2)['worst'] == []
    assert choose_captions([0.3, 0.2], count=2) == dict(best=[0, 1], typical=[], worst=[])
