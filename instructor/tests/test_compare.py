"""``instructor.compare`` with settings of one's own: a data set that lies elsewhere, few runs."""

import json
from pathlib import Path

import pytest
from helpers import run_module

from create_input_files import create_input_files
from instructor.compare import read_settings
from lab.data.shapes import generate_shapes
from tests.given.programs import path_without_programs


@pytest.mark.slow  # the notebook runs in test_notebooks.py
def test_another_data_set(tmp_path):
    generate_shapes(tmp_path / 'data', train=24, val=6, test=6)
    name = create_input_files('own', tmp_path / 'data/dataset_shapes.json', tmp_path / 'data', min_word_freq=1,
                              output_folder=tmp_path / 'data')
    (tmp_path / 'settings.json').write_text(json.dumps(dict(
        data=None, split='VAL', runs={'plain': dict(attention=False), 'attentive': {}}, seeds=[3], shown=[0, 5],
        cfg=dict(data_folder=str(tmp_path / 'data'), data_name=name, epochs=1, encoder='shapes_cnn',
                 encoded_image_size=8, embed_dim=16, attention_dim=16, decoder_dim=16),
        output_folder=str(tmp_path / 'runs'))))
    with path_without_programs() as path:  # METEOR's Java takes longer to start than all the rest
        printed = run_module('instructor.compare', '--build', tmp_path / 'build', '--settings',
                             tmp_path / 'settings.json', PATH=path)
    table = (tmp_path / 'runs/val_comparison.md').read_text()
    assert table in printed
    assert [row.split(' | ')[0] for row in table.splitlines()[2:4]] == ['| plain', '| attentive']
    assert {path.stem for path in (tmp_path / 'runs/figures').glob('*.png')} == {
        'val_curves', 'val_bleu', 'val_captions'}
    assert (tmp_path / 'runs/attentive/seed_3').is_dir() and not (tmp_path / 'build/data').exists()


def test_a_name_that_the_notebook_does_not_know(tmp_path):
    (tmp_path / 'settings.json').write_text('{"epochs": 3}')
    with pytest.raises(ValueError, match='cfg, .*, not epochs'):
        read_settings(tmp_path / 'settings.json')


def test_folders_are_as_seen_from_here_but_for_the_embedded_data(tmp_path):
    for data, folder in (({}, 'here'), ({'data': 'shapes'}, 'here'), ({'data': None}, str(Path('here').resolve()))):
        settings = dict(cfg=dict(data_folder='here', encoder_weights='DEFAULT'),
                        runs=dict(a=dict(word_vectors='README.md')), **data)
        (tmp_path / 'settings.json').write_text(json.dumps(settings))
        found = read_settings(tmp_path / 'settings.json')
        assert found['cfg'] == dict(data_folder=folder, encoder_weights='DEFAULT')
        assert found['runs'] == dict(a=dict(word_vectors=str(Path('README.md').resolve())))
