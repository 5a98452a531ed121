"""Captions in Chinese through the whole lab, alone and beside English: the shapes, with their captions in Chinese."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from create_input_files import create_input_files
from datasets import CaptionDataset
from lab.data.shapes import generate_shapes
from lab.data.tokenizers import by_name
from lab.data.vocabulary import in_language, load_word_map
from lab.decode.evaluate import caption_image, evaluate, find_picture, save_result
from lab.experiments.compare import compare, side_by_side
from lab.train.checkpoints import checkpoint_paths, load_models
from lab.train.source import ROOT
from report import contents
from solver import check_settings, train
from utils import sentence, write_json

CHINESE = dict(
    red='红色', orange='橙色', yellow='黄色', green='绿色', blue='蓝色', purple='紫色', white='白色', black='黑色',
    circle='圆形', square='正方形', triangle='三角形', star='星形', cross='十字', ring='圆环', heart='心形',
    small='小', large='大')


@pytest.fixture(scope='module')
def chinese(tmp_path_factory):
    """A folder with pictures and a JSON with captions such as 一个 大 红色 的 圆形 和 一个 小 蓝色 的 星形."""
    folder = tmp_path_factory.mktemp('chinese')
    data = json.loads(generate_shapes(folder, train=24, val=6, test=6).read_text())
    for image in data['images']:
        words = []
        for item in image['objects']:
            size, colour, shape = (CHINESE[item[part]] for part in ('size', 'color', 'shape'))
            words += ['和'] * bool(words) + ['一个', size, colour, '的', shape]
        image['sentences'] = [dict(tokens=words, raw=''.join(words) + '。')]
    (folder / 'dataset_chinese.json').write_text(json.dumps(data, ensure_ascii=False), encoding='utf-8')
    return folder


def prepare(folder, output, tokenizer):
    """:return: ``data_folder`` and ``data_name`` of the ten files"""
    name = create_input_files('chinese', folder / 'dataset_chinese.json', folder, 5, 1, output, tokenizer=tokenizer)
    return dict(data_folder=str(output), data_name=name)


def test_from_the_files_to_a_caption(chinese, tiny_cfg, tmp_path):
    data = prepare(chinese, tmp_path / 'data', 'rjieba')
    train({**tiny_cfg, **data, 'attention': True, 'batch_size': 4, 'decoder_lr': 2e-2, 'epochs': 1})
    model = load_models(tiny_cfg['output_folder'], ['Attention'])['Attention']
    result = evaluate(model, 'TEST', [1])
    assert result['scores'][0]['BLEU-1'] > 0.2
    caption = caption_image(model, find_picture(model, 0)[1])['caption']
    assert caption and {*caption} < load_word_map(**data).keys()
    printed, people = side_by_side([dict(name='soft', seeds=[result])], 0).split('\n')
    assert printed.startswith('soft: 一个') and printed.count(' ') == 1
    images = json.loads((chinese / 'dataset_chinese.json').read_text(encoding='utf-8'))['images']
    raw = next(image['sentences'][0]['raw'] for image in images if image['split'] == 'test')
    assert people == f'people: {raw.rstrip("。")}'


def test_a_system_whose_encoding_is_another_one(chinese, tiny_cfg, tmp_path):
    """Where nothing is said, Windows in China reads and writes GBK. ASCII has fewer characters still."""
    cfg = {**tiny_cfg, 'data_folder': str(tmp_path / 'data'), 'data_name': 'chinese_5_cap_per_img_1_min_word_freq'}
    for command in (
            ['create_input_files.py', '--dataset', 'chinese', '--karpathy-json-path', chinese / 'dataset_chinese.json',
             '--image-folder', chinese, '--output-folder', tmp_path / 'data', '--min-word-freq', '1'],
            ['-c', 'import solver, lab.decode.evaluate as e, lab.train.checkpoints as c\n'
             f'cfg = {cfg}\nsolver.train(cfg)\n'
             "model = c.load_models(cfg['output_folder'], 'Attention')['Attention']\n"
             "e.save_result(e.evaluate(model, beam_sizes=[1]), 'result.json')"]):
        subprocess.run([sys.executable, *command], check=True, env=os.environ | {
            'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0', 'PYTHONPATH': str(ROOT)},
            cwd=ROOT if command[0] != '-c' else tmp_path)
    for path in (tmp_path / 'data' / f"WORDMAP_{cfg['data_name']}.json", tmp_path / 'result.json'):
        assert '红色' in path.read_text(encoding='utf-8')


def test_each_tokenizer_makes_files_of_its_own(chinese, tmp_path):
    """In the same folder, under the same names."""
    for tokenizer, some in ((None, {'红色', '的'}), ('rjieba', {'红色', '的'}), ('characters', {'红', '色', '的'})):
        words = load_word_map(**prepare(chinese, tmp_path, tokenizer)).keys()
        assert words > some and not words & {'。', '红色的'} and ('红色' in words) == ('红' not in words)


# --- Two languages in one decoder ---


@pytest.fixture(scope='module')
def both(chinese):
    """A data set in English and Chinese."""
    jsons = dict(en=chinese / 'dataset_shapes.json', zh=chinese / 'dataset_chinese.json')
    name = create_input_files('both', jsons, chinese, 2, 1, chinese / 'both', tokenizer=dict(zh='characters'))
    return dict(data_folder=str(chinese / 'both'), data_name=name)


@pytest.fixture(scope='module')
def bilingual(both, small, tmp_path_factory):
    """Settings and history of a training."""
    cfg = {**small, **both, 'attention': True, 'batch_size': 8, 'decoder_lr': 2e-2, 'epochs': 12,
           'output_folder': str(tmp_path_factory.mktemp('bilingual'))}
    return cfg, train(cfg)


def is_chinese(words):
    return {bool(re.fullmatch('[\u4e00-\u9fff]+', word)) for word in words}


def test_captions_of_both_languages_side_by_side(both):
    word_map, dataset = load_word_map(**both), CaptionDataset(**both, split='TRAIN')
    names = {index: word for word, index in word_map.items()}
    assert dataset.cpi == 4 and '<start>' not in word_map
    for i, (row, length) in enumerate(zip(dataset.captions.tolist(), dataset.caplens.flatten().tolist(), strict=True)):
        start, *words, end = (names[index] for index in row[:length])
        language = ('en', 'zh')[i % 4 // 2]
        assert (start, end) == (f'<start:{language}>', '<end>') and is_chinese(words) == {language == 'zh'}
        assert words in dataset.in_language(language).references[i // 4]
    with pytest.raises(KeyError, match='start:de'):
        in_language(word_map, 'de')


def test_one_decoder_captions_in_both_languages(bilingual):
    cfg, history = bilingual
    for name in ('greedy_bleu4', 'greedy_cider'):
        each = [history[-1][f'val_{name}_{language}'] for language in ('en', 'zh')]
        assert history[-1][f'val_{name}'] == pytest.approx(sum(each) / 2) and each[0] != each[1]
    models = load_models(cfg['output_folder'], ['Attention'])
    assert list(models) == ['Attention_en', 'Attention_zh']
    assert list(load_models(cfg['output_folder'], 'Attention_zh')) == ['Attention_zh']
    folder = Path(cfg['output_folder'])
    write_json(folder / 'caption_test0.json', dict(beam_size=2, captions=dict.fromkeys(models, 'a')))
    for name, model in models.items():
        result = evaluate(model, 'TEST', [2])
        save_result(result, folder / f'test_{name}.json')
        words = [word for one in result['captions'] for word in one['caption']]
        assert result['scores'][0]['BLEU-1'] > 0.2 and is_chinese(words) == {name == 'Attention_zh'}
        assert is_chinese(word for one in result['captions'] for word in one['references'][0]) == is_chinese(words)
        people = contents.captions(folder, 'test0').data
        assert all(sentence(words) in people for words in result['captions'][0]['references'])
    assert 'missing' not in contents.bleu_by_beam(folder).data


def test_second_phases_in_both_languages(bilingual, tmp_path):
    """Each language has rewards of its own."""
    cfg, history = bilingual
    best = str(checkpoint_paths(check_settings(cfg))[1])
    second = {**cfg, 'start_from': best, 'epochs': 1, 'output_folder': str(tmp_path / 'second')}
    own, = train({**second, 'self_critical': 'mean', 'monitor': 'greedy_cider_zh'})
    assert own['monitor'] == 'greedy_cider_zh' and own['train_loss'] < 0


def test_a_comparison_has_a_row_for_each_language(both, tiny_cfg, tmp_path, monkeypatch):
    monkeypatch.setattr('lab.experiments.compare.coco_scores', lambda *_, **__: {})  # METEOR takes seconds
    runs = {'soft': {}, 'together': dict(ensemble=['soft'])}
    results = compare(runs, {**tiny_cfg, **both, 'epochs': 1}, tmp_path / 'compared', beam_sizes=[1])
    assert [result['name'] for result in results] == ['soft, en', 'soft, zh', 'together, en', 'together, zh']
    assert results == compare(runs, {**tiny_cfg, **both, 'epochs': 1}, tmp_path / 'compared', beam_sizes=[1])
    assert side_by_side(results, 0).count('people: ') == 2
    assert all(name in contents.scores_compared(tmp_path / 'compared').data for name in ('soft, en', 'together, zh'))


@pytest.mark.parametrize(('change', 'hint'), [
    (lambda images: images.pop(3), 'another language lacks it'),
    (lambda images: images[3].update(split='test'), 'in the splits')])
def test_a_language_without_a_picture_or_with_another_split(chinese, tmp_path, change, hint):
    data = json.loads((chinese / 'dataset_chinese.json').read_text(encoding='utf-8'))
    change(data['images'])
    (tmp_path / 'zh.json').write_text(json.dumps(data))
    with pytest.raises(ValueError, match=hint):
        create_input_files('both', dict(en=chinese / 'dataset_shapes.json', zh=tmp_path / 'zh.json'), chinese,
                           output_folder=tmp_path)


# --- Tokenizers ---


@pytest.mark.parametrize(('name', 'raw', 'tokens'), [
    ('characters', '3只iPhone手机、T-shirt，3.5米。', ['3', '只', 'iphone', '手', '机', 't-shirt', '3.5', '米']),
    ('rjieba', '一只黑色的狗，在草地上奔跑！', ['一只', '黑色', '的', '狗', '在', '草地', '上', '奔跑'])])
def test_tokens(name, raw, tokens):
    assert by_name(name)(raw) == tokens


def test_rjieba_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, 'rjieba', None)
    with pytest.raises(ImportError, match='rjieba.*pip install'):
        by_name('rjieba')


def test_sentences():
    assert sentence(['一只', '狗', '和', '2', 'dogs', 'here']) == '一只狗和2 dogs here'
