"""Captions of a split and of one picture, and the scores over them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from create_input_files import create_input_files
from datasets import CaptionDataset
from lab.data.images import ImageFileError
from lab.data.shapes import generate_shapes, judge_captions
from lab.data.vocabulary import SPECIAL_TOKENS
from lab.decode.cider import CiderD
from lab.decode.evaluate import caption_image, caption_split, evaluate, find_picture, list_of_beam_sizes, main
from lab.decode.metrics import bleu
from lab.train.checkpoints import checkpoint_paths, load_model
from models import Encoder
from solver import DEFAULTS, train


@pytest.fixture(scope='module')
def models(tiny_data, tmp_path_factory):
    """Six epochs of each decoder: enough for captions of their own for each picture."""
    folder = tmp_path_factory.mktemp('trained')
    trained = {}
    for attention in (False, True):
        cfg = dict(**tiny_data, encoder='shapes_cnn', encoded_image_size=4, embed_dim=12, decoder_dim=16,
                   attention_dim=10, attention=attention, epochs=6, batch_size=20, decoder_lr=2e-2, device='cpu',
                   output_folder=str(folder))
        train(cfg)
        trained[attention] = load_model(checkpoint_paths({**DEFAULTS, **cfg})[0], 'cpu')
    return trained


@pytest.fixture(params=[False, True], ids=['rnn', 'attention'])
def model(models, request):
    return models[request.param]


@pytest.fixture
def uncached(model, monkeypatch):
    """The model without features in half precision, to compare with a single picture."""
    monkeypatch.setitem(model.settings, 'cache_features', False)
    return model


@pytest.mark.parametrize('split', ['VAL', 'TEST'])
def test_each_image_once_in_order(model, tiny_data, split):
    dataset = CaptionDataset(**tiny_data, split=split)
    captions = caption_split(model, split, beam_size=2, batch_size=4, max_len=12)
    assert [c['name'] for c in captions] == dataset.names
    assert [c['references'] for c in captions] == dataset.references
    for c in captions:
        assert set(c) == {'name', 'caption', 'score', 'finished', 'references', 'probabilities', 'alphas'}
        assert len(c['caption']) <= 12
        assert not set(c['caption']) & set(SPECIAL_TOKENS) and set(c['caption']) <= set(model.word_map)
        assert c['score'] < 0 and isinstance(c['finished'], bool)
        if model.name == 'Attention':
            assert c['alphas'].shape == (len(c['caption']), 4, 4)
            assert torch.allclose(c['alphas'].sum(dim=(1, 2)), torch.ones(len(c['caption'])))
        else:
            assert c['alphas'] is None


def test_batches_do_not_change_the_captions(model):
    one, all_at_once = (caption_split(model, 'TEST', 3, batch_size) for batch_size in (1, 6))
    assert [c['caption'] for c in one] == [c['caption'] for c in all_at_once]
    assert [c['score'] for c in one] == pytest.approx([c['score'] for c in all_at_once], abs=1e-4)


def test_beam_one_is_what_validation_measured(model):
    captions = caption_split(model, 'VAL', beam_size=1)
    scores = bleu([c['references'] for c in captions], [c['caption'] for c in captions])
    assert scores['BLEU-4'] == pytest.approx(model.history[-1]['val_greedy_bleu4'], abs=1e-6)


def test_another_data_set(models, tmp_path):
    json_path = generate_shapes(tmp_path, train=2, val=2, test=3, seed=5)
    summary = create_input_files('other', json_path, tmp_path, min_word_freq=1, output_folder=tmp_path, workers=1)
    captions = caption_split(models[True], 'TEST', 1, data_folder=str(tmp_path), data_name=summary['data_name'])
    assert [c['name'] for c in captions] == CaptionDataset(tmp_path, summary['data_name'], 'TEST').names
    assert set(w for c in captions for w in c['caption']) <= set(models[True].word_map)


def test_beam_sizes_as_people_write_them():
    for given in ([1, 3], (1, 3), range(1, 4, 2), np.array([1, 3])):
        assert list_of_beam_sizes(given) == [1, 3]
    assert list_of_beam_sizes(3) == list_of_beam_sizes(np.int64(3)) == [3]
    for wrong in ([], ['3'], '3', [3.0], None, [0], [1, -1], {3: 1}):
        with pytest.raises(ValueError, match='beam_sizes is'):
            list_of_beam_sizes(wrong)


def test_evaluate(model):
    result = evaluate(model, 'TEST', beam_sizes=(1, 2, 4), max_len=20)
    assert json.loads(json.dumps(result)) == result
    assert result['model'] == model.name and result['epochs'] == 6
    assert result['parameters'] == sum(p.numel() for p in model.decoder.parameters())
    scores = [(entry['val_greedy_bleu4'], -entry['val_loss']) for entry in model.history]
    assert result['best_epoch'] == 1 + scores.index(max(scores))
    assert result['train_seconds'] == pytest.approx(sum(entry['seconds'] for entry in model.history))
    assert [row['beam_size'] for row in result['scores']] == [1, 2, 4]
    assert result['captions_beam_size'] == 2
    for row in result['scores']:
        captions = caption_split(model, 'TEST', row['beam_size'], max_len=20)
        for name, score in bleu([c['references'] for c in captions], [c['caption'] for c in captions]).items():
            assert row[name] == pytest.approx(score)
        assert row['CIDEr-D'] == pytest.approx(
            CiderD([c['references'] for c in captions]).score([c['caption'] for c in captions]))
        assert row['seconds'] > 0
        assert row['words'] == pytest.approx(np.mean([len(c['caption']) for c in captions]))
        assert result['captions_per_beam'][result['scores'].index(row)] == [c['caption'] for c in captions]
    shown = result['captions']
    assert len(shown) == 6 and 'alphas' not in shown[0] and 'probabilities' not in shown[0]
    assert result['reference_words'] == pytest.approx(np.mean([len(r) for c in shown for r in c['references']]))
    recomputed = bleu([c['references'] for c in shown], [c['caption'] for c in shown])
    assert recomputed == pytest.approx({name: result['scores'][1][name] for name in recomputed})


def test_each_image_is_encoded_once_for_all_beam_sizes(uncached, monkeypatch):
    alone = [[one['caption'] for one in caption_split(uncached, 'TEST', beam_size)] for beam_size in (1, 2, 3)]
    seen, real = [], Encoder.forward
    monkeypatch.setattr(Encoder, 'forward', lambda self, images: (seen.extend(images), real(self, images))[1])
    result = evaluate(uncached, 'TEST', (1, 2, 3), batch_size=4)
    assert len(seen) == 6 and len({image.numpy().tobytes() for image in seen}) == 6
    assert [row['beam_size'] for row in result['scores']] == [1, 2, 3]
    assert result['captions_per_beam'] == alone
    assert all(row['seconds'] > 0 for row in result['scores'])


def test_one_picture_as_in_its_split(uncached, tiny_data):
    dataset = CaptionDataset(**tiny_data, split='TEST')
    folder = Path(tiny_data['data_folder'])
    for number, whole in enumerate(caption_split(uncached, 'TEST', 3)):
        path = folder / whole['name']
        for image in (str(path), path, dataset.image(number)):
            alone = caption_image(uncached, image, 3)
            assert alone['caption'] == whole['caption'] and alone['finished'] == whole['finished']
            assert alone['score'] == pytest.approx(whole['score'], abs=1e-4)
            assert torch.equal(alone['image'], dataset.image(number))
            if whole['alphas'] is None:
                assert alone['alphas'] is None
            else:
                assert torch.allclose(alone['alphas'], whole['alphas'], atol=1e-4)


def test_gate_per_word(models):
    picture = torch.zeros(3, 256, 256, dtype=torch.uint8)
    assert caption_image(models[False], picture)['gate'] is None
    decoder, heard = models[True].decoder, []
    real = decoder.one_step

    def one_step(embeddings, encoder_out, h, c, *keys):
        heard.append(h.clone())
        return real(embeddings, encoder_out, h, c, *keys)

    decoder.one_step = one_step  # greedy search: what it reads is what the gate is measured on
    try:
        found = caption_image(models[True], picture, beam_size=1)
    finally:
        del decoder.one_step
    betas = [torch.sigmoid(decoder.f_beta(h)).mean().item() for h in heard[:len(found['caption'])]]
    assert len(betas) > 3 and len(set(betas)) > 1 and found['gate'] == pytest.approx(betas, abs=1e-5)
    assert not decoder.f_beta._forward_hooks


@pytest.mark.parametrize(('mode', 'size', 'ending'), [
    ('RGB', (301, 77), 'png'), ('L', (33, 512), 'jpg'), ('RGBA', (100, 100), 'png'), ('1', (9, 5), 'png'),
    ('P', (256, 256), 'gif'), ('CMYK', (640, 480), 'jpg')])
def test_pictures_of_any_kind(models, tmp_path, mode, size, ending):
    path = tmp_path / f'picture.{ending}'
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    captioned = caption_image(models[True], path, max_len=6)
    assert captioned['image'].shape == (3, 256, 256) and captioned['image'].dtype == torch.uint8
    assert captioned['alphas'].shape == (len(captioned['caption']), 4, 4)
    assert 1 <= len(captioned['caption']) <= 6


def test_no_picture(models, tmp_path):
    with pytest.raises(ImageFileError, match='nowhere.png: there is no such file'):
        caption_image(models[True], tmp_path / 'nowhere.png')
    (tmp_path / 'text.png').write_text('no picture')
    with pytest.raises(ImageFileError, match='text.png: this image cannot be decoded'):
        caption_image(models[True], tmp_path / 'text.png')


def test_find_picture(models, tiny_data, tmp_path, monkeypatch):
    dataset = CaptionDataset(**tiny_data, split='TEST')
    for number in (5, np.int64(5)):
        name, pixels = find_picture(models[True], number)
        assert name == 'test5' and torch.equal(pixels, dataset.image(5))
    for folder, number in (('one', 4), ('two', 3), ('three', 4)):
        (tmp_path / folder).mkdir()
        shutil.copy(Path(tiny_data['data_folder']) / dataset.names[number], tmp_path / folder / 'test5.png')
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('USERPROFILE', str(tmp_path))  # of Windows
    (one, pixels), (two, _), (three, _) = (find_picture(models[True], path) for path in (
        tmp_path / 'one/test5.png', str(tmp_path / 'two/test5.png'), '~/three/test5.png'))
    assert torch.equal(pixels, dataset.image(4))
    assert one == three != two and re.fullmatch('test5-[0-9a-f]{6}', one)
    for no_picture in ((0, 1), range(2), None, 1.5):
        with pytest.raises(ValueError, match='^pictures holds .*; it must hold numbers'):
            find_picture(models[True], no_picture)
    for number in (-1, 6):
        with pytest.raises(ValueError, match=f'there is no picture {number}: the test split has 6, 0 to 5'):
            find_picture(models[True], number)


def test_models_stay_as_they_were(model):
    before = {name: value.clone() for name, value in model.decoder.state_dict().items()}
    caption_split(model, 'VAL', 2)
    assert all(torch.equal(before[name], value) for name, value in model.decoder.state_dict().items())
    assert not model.decoder.training and not model.encoder.training


def test_judge_captions(model, tiny_data, tmp_path):
    json_path = Path(tiny_data['data_folder']) / 'dataset_shapes.json'
    captions = caption_split(model, 'TEST', 2)
    verdict = judge_captions(captions, json_path)
    assert verdict['images'] == 6 and 0 <= verdict['named'] <= 1
    if model.name == 'NoAttention':
        assert verdict['pointing'] is None and verdict['chance'] is None
    assert verdict['named'] == pytest.approx(1 - len(verdict['wrong']) / 6)
    spoken = [{**c, 'caption': c['references'][0], 'alphas': None} for c in captions]
    right = judge_captions(spoken, json_path)
    assert right['named'] == 1 and right['wrong'] == []  # people's captions are true
    assert judge_captions([*spoken[:4], {**spoken[4], 'caption': ['a']}, spoken[5]], json_path)['wrong'] == [4]
    shuffled = [{**c, 'caption': other['caption']} for c, other in zip(spoken, spoken[1:] + spoken[:1], strict=True)]
    assert judge_captions(shuffled, json_path)['named'] < 1
    looking = [{**c, 'alphas': torch.full((len(c['caption']), 4, 4), 1 / 16)} for c in spoken]
    assert 0 <= judge_captions(looking, json_path)['pointing'] < 1  # all look at the first cell
    assert judge_captions(captions, tmp_path / 'nowhere.json') is None


def test_a_cut_history_is_named(models, tmp_path, monkeypatch):
    shutil.copy(checkpoint_paths(models[True].settings)[1], tmp_path)
    (tmp_path / 'history_Attention.json').write_text('[{"epo')
    monkeypatch.setattr('sys.argv', ['evaluate', str(tmp_path), 'Attention', '--device', 'cpu'])
    with pytest.raises(ValueError, match='history_Attention.json is .*cut.*: delete it, or train this decoder again$'):
        main()
