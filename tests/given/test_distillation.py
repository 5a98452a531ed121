"""A teacher's captions: those most similar to people's are learned in place of theirs."""

import json
import runpy
import sys

import pytest
import torch

from datasets import CaptionDataset
from lab.data.vocabulary import SPECIAL_TOKENS, load_word_map
from lab.decode.beam_search import Hypothesis
from lab.decode.cider import CiderD
from lab.experiments import distillation
from lab.experiments.compare import compare
from lab.experiments.distillation import distill
from lab.train.checkpoints import checkpoint_paths, file_digest, load_model
from solver import DEFAULTS, train


@pytest.fixture
def quick(monkeypatch):
    """METEOR's Java takes longer to start than everything else here."""
    monkeypatch.setattr('lab.decode.coco_metrics._meteor', lambda *_: 0.25)


@pytest.fixture
def teacher(tiny_cfg):
    train(tiny_cfg)
    return str(checkpoint_paths({**DEFAULTS, **tiny_cfg})[1])


@pytest.fixture
def dataset(tiny_data):
    return CaptionDataset(tiny_data['data_folder'], tiny_data['data_name'], 'TRAIN')


def words_of(dataset, word_map, row):
    names = {index: word for word, index in word_map.items()}
    return [names[index] for index in dataset.captions[row, 1:dataset.caplens[row] - 1].tolist()]


@pytest.mark.parametrize('people', [0, 1, 2, 4])
def test_the_most_similar_captions(teacher, dataset, tiny_data, tmp_path, monkeypatch, people):
    word_map = load_word_map(tiny_data['data_folder'], tiny_data['data_name'])
    cpi = dataset.cpi
    own = [words_of(dataset, word_map, cpi * picture) for picture in range(len(dataset.names))]
    indices = [[word_map[word] for word in caption] for caption in own]
    far = [word_map['the']] * 3
    batches = []

    def fake(search, good):
        def search_(decoder, encoder_out, word_map, *args, samples=1, **options):
            numbers = range(sum(batches), sum(batches) + len(encoder_out))
            if search == 'sampled':
                batches.append(len(encoder_out))
            return [Hypothesis(list(words), 0.0, finished) for number in numbers
                    for words, finished in good(number)[:samples]]
        return search_

    # by beam search a far one; sampled: people's, the same again, an unfinished one, an empty one
    monkeypatch.setattr(distillation, 'beam_search', fake('beam', lambda number: [(far, True)]))
    monkeypatch.setattr(distillation, 'sample_search', fake('sampled', lambda number: [
        (indices[number], True), (indices[number], True), (indices[number][:2], False), ([], True)]))
    monkeypatch.setattr(distillation, 'BATCH_SIZE', 7)
    path = tmp_path / 'captions.json'
    score = distill(path, [teacher], people=people, samples=4)
    content = json.loads(path.read_text())
    assert content['names'] == dataset.names and content['provenance']['teachers'] == [file_digest(teacher)]
    scorer = CiderD([[[*caption, '<end>'] for caption in those] for those in dataset.references])
    scores = []
    for picture, captions in enumerate(content['captions']):
        theirs = [words_of(dataset, word_map, cpi * picture + i) for i in range(cpi)]
        # two different ones: the nearer is last, and people's fill the room before them
        taken = [['the'] * 3, own[picture]][-(cpi - people):]
        assert captions == theirs[:cpi - len(taken)] + taken
        scores += scorer.scores([picture] * len(taken), [[*caption, '<end>'] for caption in taken]).tolist()
    assert score == pytest.approx(sum(scores) / len(scores))


def test_as_many_as_the_data_set_has_and_the_same_again(teacher, dataset, tmp_path):
    paths = [tmp_path / name for name in ('one.json', 'same.json', 'other.json')]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        distill(path, [teacher], people=0, samples=20, temperature=1.5, seed=seed)
    one, same, other = (json.loads(path.read_text())['captions'] for path in paths)
    assert one == same != other
    assert len(one) == len(dataset.names) and {len(captions) for captions in one} == {dataset.cpi}
    scorer = CiderD([[[*caption, '<end>'] for caption in those] for those in dataset.references])
    for picture, captions in enumerate(one):
        assert len({tuple(caption) for caption in captions}) == dataset.cpi
        scores = scorer.scores([picture] * len(captions), [[*caption, '<end>'] for caption in captions])
        assert (scores[1:] >= scores[:-1] - 1e-9).all()


@pytest.mark.parametrize('people', [-1, 5])
def test_too_many_captions_of_people(teacher, tmp_path, people):
    with pytest.raises(ValueError, match=f'people is {people}; it must be from 0 to 4'):
        distill(tmp_path / 'captions.json', [teacher], people=people)
    assert not (tmp_path / 'captions.json').exists()


def test_training_learns_these_captions(tiny_cfg, teacher, dataset, tmp_path):
    """All captions alike: the decoder soon says nothing else."""
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    path, caption = tmp_path / 'captions.json', [word for word in word_map if word not in SPECIAL_TOKENS][:4]
    path.write_text(json.dumps(dict(names=dataset.names,
                                    captions=[[caption] * dataset.cpi for _ in dataset.names])))
    cfg = {**tiny_cfg, 'captions': str(path), 'start_from': teacher, 'decoder_lr': 2e-2, 'epochs': 20, 'dropout': 0.0,
           'output_folder': str(tmp_path / 'student')}
    history = train(cfg)
    assert history[-1]['train_loss'] < 0.5 * history[0]['train_loss']
    model = load_model(checkpoint_paths({**DEFAULTS, **cfg})[0], 'cpu')
    assert distillation.own_captions(dataset, model, 0) != [caption] * dataset.cpi  # the data set itself is as it was
    hypotheses = distillation.beam_search(model.decoder, distillation.encode(
        model, distillation.caption_dataset(model, 'VAL').images(torch.arange(4)), True), model.word_map, 1)
    assert [model.words(one.words) for one in hypotheses] == [caption] * 4


def test_another_number_of_captions_is_refused(dataset, tmp_path, tiny_data):
    path = tmp_path / 'captions.json'
    path.write_text(json.dumps(dict(names=dataset.names, captions=[[['a']]] * len(dataset.names))))
    word_map = load_word_map(tiny_data['data_folder'], tiny_data['data_name'])
    with pytest.raises(ValueError, match='another number of them'):
        dataset.replace_captions(path, word_map)
    path.write_text(json.dumps(dict(names=['other'] * len(dataset.names),
                                    captions=[[['a']] * dataset.cpi] * len(dataset.names))))
    with pytest.raises(ValueError, match='captions of other pictures'):
        dataset.replace_captions(path, word_map)


def test_a_comparison_distills(tiny_cfg, tmp_path, capsys, quick):
    cfg = {**{key: value for key, value in tiny_cfg.items() if key != 'output_folder'}, 'epochs': 1}
    runs = {'plain': dict(attention=False), 'soft': dict(attention=True),
            'distilled': dict(distill=['plain', 'soft'], start_from='soft', epochs=1),
            'too': dict(distill=['plain', 'soft'], epochs=1)}
    results = compare(runs, cfg, tmp_path, seeds=(0, 1), beam_sizes=(1,))
    assert [len(result['seeds']) for result in results] == [2, 2, 2, 2]
    captions = tmp_path / 'captions_by_plain-and-soft.json'
    best = [checkpoint_paths({**DEFAULTS, **cfg, 'attention': attention, 'output_folder': tmp_path / folder})[1]
            for folder, attention in (('plain/seed_0', False), ('plain/seed_1', False), ('soft/seed_0', True),
                                      ('soft/seed_1', True))]
    assert json.loads(captions.read_text())['provenance']['teachers'] == [file_digest(path) for path in best]
    assert capsys.readouterr().out.count('== captions_by_plain-and-soft ==') == 1

    before = captions.stat().st_mtime_ns
    assert compare(runs, cfg, tmp_path, seeds=(0, 1), beam_sizes=(1,)) == results
    assert captions.stat().st_mtime_ns == before and 'epoch' not in capsys.readouterr().out
    compare({**runs, 'plain': dict(attention=False, epochs=2)}, cfg, tmp_path, seeds=(0, 1), beam_sizes=(1,))
    assert captions.stat().st_mtime_ns != before  # another teacher, so others again
    assert (tmp_path / 'distilled' / 'seed_0' / 'earlier_1').exists()


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
def test_command_line(teacher, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['distillation', *map(str, arguments)])
        runpy.run_module('lab.experiments.distillation', run_name='__main__')

    run(tmp_path / 'captions.json', teacher, '--samples=2', '--device=cpu')
    assert 'captions.json: captions with a mean CIDEr-D of ' in capsys.readouterr().out
    assert json.loads((tmp_path / 'captions.json').read_text())['captions']
    with pytest.raises(SystemExit, match='none.pth.tar'):
        run(tmp_path / 'other.json', tmp_path / 'none.pth.tar', '--device=cpu')
    assert not (tmp_path / 'other.json').exists()
