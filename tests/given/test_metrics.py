"""BLEU and CIDEr-D against cases worked out by hand, published figures and another program; files that are whole."""

import errno
import math
import random

import pytest

from lab.decode.bleu import bleu
from lab.decode.cider import CiderD, cider_d
from lab.decode.metrics import caption_bleu, choose_captions, same_caption, scores_of
from utils import atomic_path

ORDERS = ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4']


def scores(references, captions):
    """BLEU-1 to 4 of captions given as text: per image a list of references, and one caption."""
    found = bleu([[words.split() for words in those] for those in references], [words.split() for words in captions])
    assert list(found) == ORDERS
    return list(found.values())


# --- Scores of captions ---


def test_one_caption_for_nearly_all_pictures_is_said():
    dull, own = ['a', 'man'], [['dog', str(i)] for i in range(20)]
    assert same_caption([dull] * 19 + own[:1]).startswith('19 of 20') and 'a man' in same_caption([dull] * 19 + own[:1])
    assert same_caption([dull] * 18 + own[:2]) is same_caption(own) is same_caption([dull]) is None


def test_published_figures(published):
    references, captions, expected = published
    found = scores_of(references, captions)
    assert list(found) == [*ORDERS, 'CIDEr-D']
    assert list(found.values()) == pytest.approx([expected[name] for name in (*ORDERS, 'CIDEr')], abs=1e-6)


@pytest.mark.parametrize(('references', 'captions', 'precisions', 'penalty'), [
    ([['a red circle on top']], ['a red circle on ground'], [4 / 5, 3 / 4, 2 / 3, 1 / 2], 1),
    # the example of Papineni et al.: "the" stands at most twice in a reference
    ([['the cat is on the mat', 'there is a cat on the mat']], ['the the the the the the the'], [2 / 7, 0, 0, 0], 1),
    # the reference of the closest length counts, and longer captions pay nothing more
    ([['a b c d e f g h', 'a b c d e x', 'a']], ['a b c d e'], [1, 1, 1, 1], math.exp(1 - 6 / 5)),
    ([['a b c d']], ['a b c d e'], [4 / 5, 3 / 4, 2 / 3, 1 / 2], 1),
    # of two as close the shorter one
    ([['a b c d e f', 'a b c d']], ['a b c d x'], [4 / 5, 3 / 4, 2 / 3, 1 / 2], 1),
    # counts are summed over images: 6 of 9 words, not the mean of 5 / 5 and 1 / 4
    ([['a b c d e'], ['f g h i']], ['a b c d e', 'f x y z'], [6 / 9, 4 / 7, 3 / 5, 2 / 3], 1),
    # no 4-gram in a caption of two words: 0 of 0, not 0 of 1
    ([['a'], ['a dog'], ['a dog runs on the grass']], ['a', 'a dog', 'a dog runs on the grass'], [1, 1, 1, 1], 1),
    # no 3-gram in any caption: a millionth, as in pycocoevalcap
    ([['a dog']], ['a dog'], [1, 1, 1e-6, 1e-6], 1),
    ([['a b c d'], ['e f g h']], ['a b c d', ''], [1, 1, 1, 1], math.exp(1 - 8 / 4)),
    ([['a b c d e'], ['f g']], ['', ''], [0, 0, 0, 0], 1)])
def test_bleu_by_hand(references, captions, precisions, penalty, recwarn):
    expected = [penalty * math.prod(precisions[:n]) ** (1 / n) for n in (1, 2, 3, 4)]
    assert scores(references, captions) == pytest.approx(expected, abs=1e-6)
    assert not recwarn.list  # a first epoch without a right 4-gram is no reason to warn


def test_cider_of_the_reference_implementation():
    """40 images with one to six references each and an empty one, of words that differ much in how common they are."""
    cider = pytest.importorskip('pycocoevalcap.cider.cider').Cider()
    rng, vocabulary = random.Random(0), [f'w{i}' for i in range(100)]

    def caption():
        return rng.choices(vocabulary, [1 / (i + 1) for i in range(100)], k=rng.randint(1, 14))

    references = [[*(caption() for _ in range(rng.randint(1, 6))), []] for _ in range(40)]
    captions = [rng.choice([caption(), rng.choice(those) + ['never', 'seen', 'never'] * rng.randint(0, 1), []])
                for those in references]
    mean, each = cider.compute_score({i: [' '.join(words) for words in those] for i, those in enumerate(references)},
                                     {i: [' '.join(caption)] for i, caption in enumerate(captions)})
    scorer = CiderD(references)
    assert [scorer.score(i, caption) for i, caption in enumerate(captions)] == pytest.approx(list(each), abs=1e-6)
    assert cider_d(references, captions)['CIDEr-D'] == pytest.approx(mean, abs=1e-6) and [] in captions


@pytest.mark.parametrize('metric', [bleu, cider_d])
@pytest.mark.parametrize(('references', 'captions'), [([[['a']]], []), ([[['a']], [['b']]], [['a']]), ([], [])])
def test_one_caption_per_image(metric, references, captions):
    with pytest.raises(ValueError):
        metric(references, captions)


def test_bleu_of_one_caption():
    references = ['a dog runs over the wet grass'.split(), 'a brown dog is running'.split()]
    score, closest = caption_bleu(references, 'a brown dog runs over the grass'.split())
    assert 0 < score < 1 and closest == references[0]
    worse, closest = caption_bleu(references, 'a brown dog is here'.split())
    assert worse == pytest.approx(0.2 ** (1 / 4)) and closest == references[1]  # 4/5 * 3/4 * 2/3 * 1/2
    assert caption_bleu(references, references[1]) == (pytest.approx(1), references[1])
    assert caption_bleu([['a', 'dog'], ['x'] * 9], ['a', 'dog']) == (pytest.approx(1), ['a', 'dog'])  # no 4-gram
    rare, _ = caption_bleu(references, 'a dog runs on the grass'.split())  # no 4-gram is right: 0.1 counts as right
    assert rare == pytest.approx((5 / 6 * 2 / 5 * 1 / 4 * 0.1 / 3) ** (1 / 4))  # the shorter of two is as close
    assert caption_bleu(references, [])[0] == 0


def test_best_typical_and_worst_captions():
    scores = [0.9, 0.1, 0.5, 0.8, 0.55, 0.2, 0.4]
    assert choose_captions(scores, count=2) == dict(best=[0, 3], typical=[2, 4], worst=[1, 5])
    # 1 and 5 are true, though few people would say so; 0 is wrong, though nearly all of its words are right
    assert choose_captions(scores, wrong=[0, 2, 4], count=2) == dict(best=[3, 6], typical=[5, 1], worst=[2, 4])
    assert choose_captions(scores, wrong=[], count=2)['worst'] == []
    assert choose_captions([0.3, 0.2], count=2) == dict(best=[0, 1], typical=[], worst=[])


# --- Helpers ---


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / 'new/folder/file.txt'
    with atomic_path(path) as temporary:
        temporary.write_text('old')
        assert not path.exists()
    with atomic_path(path) as temporary:
        temporary.write_text('new')
        assert path.read_text() == 'old' and temporary.parent == path.parent  # one file system: it is only renamed
    with pytest.raises(KeyboardInterrupt), atomic_path(str(path)) as temporary:
        temporary.write_text('half')
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), atomic_path(path):
        raise ZeroDivisionError  # before anything was written
    with pytest.raises(OSError, match='file.txt cannot be written.*disk'), atomic_path(path):
        try:  # test_checkpoints.py has a full disk
            raise OSError(errno.EDQUOT, 'one has used up what one may')
        finally:
            raise RuntimeError('torch.save may hide it behind an error of its own')
    assert path.read_text() == 'new' and list(path.parent.iterdir()) == [path]
