"""A teacher's captions: those most similar to people's are learned in place of theirs."""

import json

import pytest

from datasets import CaptionDataset
from lab.data.vocabulary import SPECIAL_TOKENS, load_word_map
from lab.decode.evaluate import caption_split
from lab.decode.greedy_search import Hypothesis
from lab.experiments import distillation
from lab.experiments.distillation import distill
from lab.train.checkpoints import checkpoint_paths, file_digest, load_model
from solver import DEFAULTS, train


@pytest.fixture
def teacher(trained):
    return str(checkpoint_paths({**DEFAULTS, **trained(True)[0]})[1])


@pytest.fixture
def dataset(tiny_data):
    return CaptionDataset(**tiny_data, split='TRAIN')


@pytest.fixture
def word_map(tiny_data):
    return load_word_map(**tiny_data)


@pytest.fixture
def people_say(dataset, word_map):
    """Per picture people's captions, as training reads them."""
    names = {index: word for word, index in word_map.items()}
    captions = [[names[index] for index in row[1:length - 1]] for row, length in zip(
        dataset.captions.tolist(), dataset.caplens.flatten().tolist(), strict=True)]
    return [captions[first:first + dataset.cpi] for first in range(0, len(captions), dataset.cpi)]


@pytest.mark.parametrize('people', [0, 2, 4])
def test_the_most_similar_captions(teacher, dataset, word_map, people_say, tmp_path, monkeypatch, people):
    """By beam search comes a far one; sampled: people's, the same again, an unfinished one, an empty one."""
    done = dict(beam=0, sampled=0)

    def fake(search, captions_of):
        def search_(decoder, encoder_out, *args, samples=1):
            numbers = range(done[search], done[search] + len(encoder_out))
            done[search] += len(encoder_out)
            return [Hypothesis([word_map[word] for word in words], 0.0, finished) for number in numbers
                    for words, finished in captions_of(people_say[number][0])[:samples]]
        return search_

    monkeypatch.setattr(distillation, 'beam_search', fake('beam', lambda own: [(['the'] * 3, True)]))
    monkeypatch.setattr(distillation, 'sample_search', fake('sampled', lambda own: [
        (own, True), (own, True), (own[:2], False), ([], True)]))
    monkeypatch.setattr(distillation, 'BATCH_SIZE', 7)
    path = tmp_path / 'captions.json'
    distill(path, [teacher], people=people, samples=4)
    content = json.loads(path.read_text())
    assert content['names'] == dataset.names and content['provenance']['teachers'] == [file_digest(teacher)]
    for captions, theirs in zip(content['captions'], people_say, strict=True):
        # two different ones: the nearer is last, and people's fill the room before them
        taken = [['the'] * 3, theirs[0]][-(dataset.cpi - people):]
        assert captions == theirs[:dataset.cpi - len(taken)] + taken


def test_the_same_seed_gives_the_same_captions(teacher, dataset, tmp_path):
    found = []
    for number, seed in enumerate((0, 0, 1)):
        distill(tmp_path / f'{number}.json', [teacher], people=0, samples=20, temperature=1.5, seed=seed)
        found.append(json.loads((tmp_path / f'{number}.json').read_text())['captions'])
    assert found[0] == found[1] != found[2] and len(found[0]) == len(dataset.names)


def test_training_learns_these_captions(trained, teacher, dataset, word_map, tmp_path):
    """All captions alike: the decoder soon says nothing else."""
    path, caption = tmp_path / 'captions.json', [word for word in word_map if word not in SPECIAL_TOKENS][:4]
    path.write_text(json.dumps(dict(names=dataset.names, captions=[[caption] * dataset.cpi] * len(dataset.names))))
    cfg = {**trained(True)[0], 'captions': str(path), 'start_from': teacher, 'decoder_lr': 2e-2, 'epochs': 8,
           'dropout': 0.0, 'output_folder': str(tmp_path / 'student')}
    train(cfg)
    captions = caption_split(load_model(checkpoint_paths({**DEFAULTS, **cfg})[0], 'cpu'), 'VAL', 1)
    assert all(c['caption'] == caption for c in captions)


@pytest.mark.parametrize('wrong', [dict(captions=[[['a']]] * 24), dict(names=['other'] * 24),
                                   dict(captions=[[['a'] * 99] * 5] * 24)])
def test_captions_of_another_data_set_are_refused(dataset, tmp_path, wrong):
    path = tmp_path / 'captions.json'
    path.write_text(json.dumps({**dict(names=dataset.names, captions=[[['a']] * 5] * 24), **wrong}))
    with pytest.raises(ValueError, match='captions.json'):
        dataset.replace_captions(path)
