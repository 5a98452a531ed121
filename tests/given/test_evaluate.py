"""Captions of a split and of one picture, and the scores over them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from datasets import CaptionDataset
from lab.data.vocabulary import SPECIAL_TOKENS
from lab.decode.beam_search import beam_search
from lab.decode.bleu import bleu
from lab.decode.evaluate import caption_image, caption_split, evaluate, find_picture, save_result
from lab.decode.greedy_search import Hypothesis
from lab.decode.metrics import scores_of
from lab.train.batches import collate
from lab.train.checkpoints import load_model
from lab.train.features import caption_dataset
from utils import topk_accuracy


@pytest.fixture(scope='module')
def models(well_trained):
    return {attention: load_model(next(well_trained.glob(f'checkpoint_*_{name}.pth.tar')), 'cpu')
            for attention, name in ((False, 'NoAttention'), (True, 'Attention'))}


@pytest.fixture(params=[False, True], ids=['rnn', 'attention'])
def model(models, request):
    return models[request.param]


def words_of(captions):
    return [caption['caption'] for caption in captions]


# --- A split ---


@torch.no_grad()
def test_captions_and_guesses_have_the_scores_that_validation_measured(model):
    """The guesses after true words here are caption by caption, so that none can be taken for another's."""
    captions, measured = caption_split(model, 'VAL', beam_size=1), model.history[-1]
    scores = scores_of([c['references'] for c in captions], words_of(captions))
    for name, of_training in (('BLEU-4', 'val_greedy_bleu4'), ('CIDEr-D', 'val_greedy_cider')):
        assert scores[name] == pytest.approx(measured[of_training], abs=1e-6)
    dataset = caption_dataset(model, 'VAL')
    decoded = [model(collate(dataset, torch.tensor([number]))) for number in range(len(dataset))]
    scores, targets = torch.cat([one.scores for one in decoded]), torch.cat([one.targets for one in decoded])
    guesses = [[word for word in model.words(one.scores.argmax(dim=1).tolist()) if word not in SPECIAL_TOKENS]
               for one in decoded]
    references = [those for those in dataset.references for _ in range(dataset.cpi)]
    found = dict(cross_entropy=torch.nn.functional.cross_entropy(scores, targets).item(),
                 top5=topk_accuracy(scores, targets, 5).item(), bleu4=bleu(references, guesses)['BLEU-4'])
    assert found == pytest.approx({name: measured[f'val_{name}'] for name in found}, rel=1e-5)


def test_evaluate(model, tmp_path):
    result = evaluate(model, 'TEST', beam_sizes=(1, 2, 4), max_len=20)
    assert result['model'] == model.name and result['epochs'] == 12
    assert result['parameters'] == sum(p.numel() for p in model.decoder.parameters())
    scores = [(entry['val_greedy_bleu4'], -entry['val_loss']) for entry in model.history]
    assert result['best_epoch'] == 1 + scores.index(max(scores))
    assert result['train_seconds'] == pytest.approx(sum(entry['seconds'] for entry in model.history))
    references = [c['references'] for c in result['captions']]
    assert result['reference_words'] == pytest.approx(np.mean([len(r) for those in references for r in those]))
    for row, beam_size, words in zip(result['scores'], (1, 2, 4), result['captions_per_beam'], strict=True):
        assert words == words_of(caption_split(model, 'TEST', beam_size, max_len=20))
        expected = dict(beam_size=beam_size, words=np.mean(list(map(len, words))), **scores_of(references, words))
        assert row.pop('seconds') > 0 and row == pytest.approx(expected)
    assert result['captions_beam_size'] == 2 and words_of(result['captions']) == result['captions_per_beam'][1]

    save_result(result, tmp_path / 'test.json')
    for caption in result['captions']:
        del caption['alphas'], caption['probabilities']
    assert json.loads((tmp_path / 'test.json').read_text()) == result


def test_a_search_of_ones_own(model):
    """In place of beam search, for a split and for one picture."""
    def second_word_first(decoder, encoder_out, word_map, beam_size, max_len):
        return [Hypothesis([*found.words[1:2], beam_size, max_len], -1.0, True)
                for found in beam_search(decoder, encoder_out, word_map, beam_size, max_len)]

    expected = [[*words[1:2], *model.words([3, 9])] for words in words_of(caption_split(model, 'TEST', 3))]
    result = evaluate(model, 'TEST', [3], max_len=9, search=second_word_first)
    assert result['captions_per_beam'] == [expected] and result['captions'][0]['alphas'] is None
    picture = CaptionDataset(model.settings['data_folder'], model.settings['data_name'], 'TEST').image(4)
    found = caption_image(model, picture, 3, 9, search=second_word_first)
    assert found['caption'] == expected[4] and found['score'] == -1 and found['alphas'] is None


# --- One picture ---


def test_one_picture_as_in_its_split(model, tiny_data, monkeypatch):
    monkeypatch.setitem(model.settings, 'cache_features', False)  # which are in half precision
    dataset, folder = CaptionDataset(**tiny_data, split='TEST'), Path(tiny_data['data_folder'])
    for number, whole in enumerate(caption_split(model, 'TEST', 3, batch_size=4)):
        for image in (folder / whole['name'], dataset.image(number)):
            alone = caption_image(model, image, 3)
            assert alone['caption'] == whole['caption'] and alone['finished'] == whole['finished']
            assert alone['score'] == pytest.approx(whole['score'], abs=1e-4)
            assert alone['probabilities'] == pytest.approx(whole['probabilities'], abs=1e-4)
            assert torch.equal(alone['image'], dataset.image(number))
            if model.name == 'Attention':
                assert torch.allclose(alone['alphas'], whole['alphas'], atol=1e-4)


def test_gate_per_word(models):
    picture, model = torch.zeros(3, 256, 256, dtype=torch.uint8), models[True]
    assert caption_image(models[False], picture)['gate'] is None
    found, (state, memory) = caption_image(model, picture), model.decoder.start(model.encode(picture.unsqueeze(0)))
    for word, beta in zip(['<start>', *found['caption']], found['gate'], strict=False):
        assert beta == pytest.approx(torch.sigmoid(model.decoder.f_beta(state[0])).mean().item(), abs=1e-5)
        _, state, _ = model.decoder.step(torch.tensor([model.word_map[word]]), state, memory)
    assert len(found['gate']) == len(found['caption']) > 3


def test_find_picture(models, tiny_data, tmp_path):
    dataset = CaptionDataset(**tiny_data, split='TEST')
    for number in (5, np.int64(5)):
        name, pixels = find_picture(models[True], number)
        assert name == 'test5' and torch.equal(pixels, dataset.image(5))
    for folder, number in (('one', 4), ('two', 3)):
        (tmp_path / folder).mkdir()
        shutil.copy(Path(tiny_data['data_folder']) / dataset.names[number], tmp_path / folder / 'test5.png')
    (one, pixels), (two, _) = (find_picture(models[True], path) for path in (
        tmp_path / 'one/test5.png', str(tmp_path / 'two/test5.png')))
    assert torch.equal(pixels, dataset.image(4))
    assert one != two and re.fullmatch('test5-[0-9a-f]{6}', one)  # two files may have one name
    with pytest.raises(IndexError, match='6'):
        find_picture(models[True], 6)
