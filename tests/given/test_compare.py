"""Several decoders compared: what is trained and tested, what is not done twice, what is refused first, the table."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

import solver
from create_input_files import create_input_files
from lab.data.shapes import generate_shapes
from lab.decode.metrics import METRICS, scores_of
from lab.experiments import compare as module
from lab.experiments.compare import compare, comparison_table, folder_name, mean_scores
from lab.more import captionnet, self_critical
from lab.more import decoder as base
from lab.more.ensembles import Ensemble
from lab.train.checkpoints import checkpoint_paths, file_digest, read_checkpoint
from lab.train.resume import fingerprints
from solver import check_settings

ADAPTIVE = dict(decoder='lab.more.adaptive.DecoderWithAdaptiveAttention')
RUNS = {
    'plain LSTM': dict(attention=False, epochs=1),
    'adaptive': ADAPTIVE,
    'adaptive, self-critical': dict(**ADAPTIVE, start_from='adaptive', self_critical='greedy', epochs=1),
    'both': dict(ensemble=['plain LSTM', 'adaptive']),
}
LSTM, *OTHERS = TRAINED = list(RUNS)[:-1]
SEEDS, BEAM_SIZES = (0, 1), (1, 2)


@pytest.fixture(scope='module')
def cfg(tiny_data, small):
    return {**tiny_data, **small}


def meteor(captions):
    """What stands for METEOR here, whose Java takes long to start; test_coco_metrics.py has it."""
    return sum(words.count('a') for words in captions) / 100


@pytest.fixture(scope='module', autouse=True)
def quick():
    """Without Java, and with short captions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, 'coco_scores', lambda references, captions, log: {'METEOR': meteor(captions)})
        patch.setattr(module, 'evaluate', partial(module.evaluate, max_len=8))
        yield


@pytest.fixture(scope='module')
def compared(cfg, tmp_path_factory):
    """Folder and results of RUNS, done once; in BLEU-4 no epoch is better than the first."""
    folder, validate = tmp_path_factory.mktemp('compared'), solver.validate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, 'validate', lambda run: {
            **validate(run), 'greedy_bleu4': 1 / (1 + len(run.model.history))})
        return folder, compare(RUNS, cfg, folder, SEEDS, beam_sizes=BEAM_SIZES)


@pytest.fixture
def again(cfg, compared, tmp_path, monkeypatch):
    """``again(...)`` compares once more in a copy of that folder: names of the runs that are trained, and the results.

    A training only writes another best checkpoint.
    """
    shutil.copytree(compared[0], tmp_path / 'runs')
    trained = []

    def train(settings):
        trained.append(Path(settings['output_folder']).parent.name)
        best = checkpoint_paths(settings)[1]
        torch.save({**read_checkpoint(best), 'trained': len(trained)}, best)
        return read_checkpoint(best)['history']

    def repeat(runs=RUNS, changes=None, beam_sizes=BEAM_SIZES, **options):
        monkeypatch.setattr(module, 'train', train)
        trained.clear()
        results = compare(runs, {**cfg, **(changes or {})}, tmp_path / 'runs', SEEDS, beam_sizes=beam_sizes, **options)
        assert len(trained) == len(SEEDS) * len(set(trained))
        return [name for name in runs if folder_name(name) in trained], results

    return repeat


@pytest.fixture
def no_training(monkeypatch):
    """A training is a ZeroDivisionError."""
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)


def written(folder):
    """The results with all times, which no second test would repeat."""
    return (folder / 'comparison.json').read_text()


# --- What is trained and tested ---


def test_every_run_is_trained_and_tested(compared):
    folder, results = compared
    epochs = {'plain LSTM': 1, 'adaptive': 2, 'adaptive, self-critical': 1, 'both': 0}
    assert [result['name'] for result in results] == list(epochs)
    for result in results:
        assert [len(seed['history']) for seed in result['seeds']] == [epochs[result['name']]] * len(result['seeds'])
        for seed in result['seeds']:
            references = [caption['references'] for caption in seed['captions']]
            for row, size, captions in zip(seed['scores'], BEAM_SIZES, seed['captions_per_beam'], strict=True):
                scores = scores_of(references, captions) | {'METEOR': meteor(captions), 'beam_size': size}
                assert len(captions) == 6 and {name: row[name] for name in scores} == scores
    histories = [seed['history'] for result in results for seed in result['seeds']]
    assert len(histories) == 7 and all(history not in histories[:i] for i, history in enumerate(histories))


def test_the_best_weights_of_each_seed_are_tested_and_go_on(compared):
    """Into second phases of the same seed, and of all seeds into ensembles."""
    folder, results = compared
    seeds = {result['name']: result['seeds'] for result in results}
    best = {name: [next((folder / folder_name(name) / f'seed_{seed}').glob('BEST_*')) for seed in SEEDS]
            for name in TRAINED}
    digests = {name: list(map(file_digest, paths)) for name, paths in best.items()}
    assert [len(read_checkpoint(path)['history']) for path in best['adaptive']] == [1, 1]  # of two
    for name in TRAINED:
        assert [seed['provenance']['checkpoints'] for seed in seeds[name]] == [[one] for one in digests[name]]
        if first := RUNS[name].get('start_from'):
            assert [read_checkpoint(path)['fingerprints']['start_from file'] for path in best[name]] == digests[first]
            assert [seed['begins'][1] for seed in seeds[name]] == [seed['history'][0] for seed in seeds[first]]
    assert seeds['both'][0]['provenance']['checkpoints'] == digests['plain LSTM'] + digests['adaptive']
    assert [seeds[name][0]['begins'][0] for name in TRAINED] == [0, 0, 1]  # epochs before it


def test_settings_are_chosen_on_the_validation_split(again, compared, tmp_path):
    trained, results = again(split='VAL')
    before = (tmp_path / 'runs/val_comparison.json').read_text()
    assert trained == [] and 'val' in results[0]['seeds'][0]['captions'][0]['name']
    again()
    assert written(tmp_path / 'runs') == written(compared[0]) != before
    assert (tmp_path / 'runs/val_comparison.json').read_text() == before


# --- What is not done twice ---

EXTRA = lambda code: code + b'\nX = 1\n'


@pytest.mark.parametrize(('edited', 'change', 'expected'), [
    ('solver', lambda code: code.replace(b'"""Cross-entropy', b'"""A loss: cross-entropy'), []),
    *[(name, EXTRA, []) for name in ('lab.experiments.compare', 'lab.data.shapes', 'lab.figures.curves')],
    ('solver', lambda code: code.replace(b'loss + alpha_c *', b'loss - alpha_c *'), TRAINED),  # caption_loss
    ('lab.more.adaptive', EXTRA, OTHERS), ('lab.decode.beam_search', EXTRA, None)])  # None: all are tested again
def test_code_that_decides_trains_again(again, compared, tmp_path, other_source, edited, change, expected):
    with other_source(edited, change):
        trained, _ = again()
    assert trained == (expected or []) and (written(tmp_path / 'runs') == written(compared[0])) == (expected == [])


@pytest.mark.parametrize(('run', 'expected'), [('adaptive', OTHERS), (OTHERS[1], [OTHERS[1]])])
def test_other_settings_train_again(again, compared, run, expected):
    """And with them what goes on from these weights; ensembles are tested again."""
    trained, results = again({**RUNS, run: {**RUNS[run], 'dropout': 0.2}})
    assert trained == expected
    same = results[-1]['seeds'][0]['provenance'] == compared[1][-1]['seeds'][0]['provenance']
    assert same == ('adaptive' not in expected)


@pytest.mark.parametrize(('train', 'test', 'expected'), [(24, 6, []), (26, 8, TRAINED)])
def test_other_pictures_under_the_same_names(again, cfg, compared, tmp_path, train, test, expected):
    """Training pictures are trained on again, those of the test are captioned again; another folder does not matter."""
    json_path = generate_shapes(tmp_path / 'data', train=train, val=6, test=test)
    create_input_files('shapes', json_path, tmp_path / 'data', min_word_freq=1, output_folder=tmp_path / 'data')
    trained, results = again(changes=dict(data_folder=str(tmp_path / 'data')))
    assert trained == expected and [len(result['seeds'][0]['captions']) for result in results] == [test] * len(RUNS)
    assert (written(tmp_path / 'runs') == written(compared[0])) == ((train, test) == (24, 6))


@pytest.mark.parametrize('setting', ['word_vectors', 'encoder_weights', 'start_from'])
def test_another_file_under_the_same_name_counts(cfg, tmp_path, setting):
    path = tmp_path / 'file'
    seen = []
    for content in ('one', 'one', 'other'):
        path.write_text(content)
        seen.append(fingerprints(check_settings({**cfg, setting: str(path)})))
    assert seen[0] == seen[1] != seen[2]


def test_another_metric_that_chooses_trains_again(cfg, tmp_path, monkeypatch, capsys):
    def longest(references, captions, sign):
        return {'longest': sign * sum(map(len, captions))}

    for sign, trained in ((1, True), (1, False), (-1, True)):
        monkeypatch.setattr('lab.decode.metrics.METRICS', [*METRICS, partial(longest, sign=sign)])
        compare({LSTM: RUNS[LSTM]}, {**cfg, 'monitor': 'greedy_longest'}, tmp_path, beam_sizes=[1])
        assert ('GREEDY LONGEST' in capsys.readouterr().out) == trained


@pytest.mark.parametrize('beam_sizes', [BEAM_SIZES, (2, 3)])
def test_a_metric_of_ones_own_is_tested_without_a_training(again, beam_sizes):
    mine = lambda references, captions: {'mine': len(captions)}
    METRICS.append(mine)
    try:
        trained, results = again(beam_sizes=beam_sizes)
    finally:
        METRICS.remove(mine)
    assert trained == []
    for result in results:
        assert [(row['beam_size'], row['mine']) for row in result['seeds'][0]['scores']] == [(n, 6) for n in beam_sizes]
    names = {*columns(comparison_table(results))[0]}
    assert {f'mine, beam {beam_sizes[1]}', f'METEOR, beam {beam_sizes[1]}', 'BLEU-4, beam 2'} < names


def test_a_stopped_comparison_goes_on(cfg, tmp_path, monkeypatch):
    """Also in a second phase."""
    runs, validations = {'a': dict(epochs=1), 'b': dict(start_from='a')}, [solver.validate] * 2
    with monkeypatch.context() as patch, pytest.raises(IndexError):
        patch.setattr(solver, 'validate', lambda run: validations.pop()(run))
        compare(runs, cfg, tmp_path)
    first, = json.loads((tmp_path / 'b/seed_0/history_Attention.json').read_text())
    _, second = compare(runs, cfg, tmp_path)
    history = second['seeds'][0]['history']
    assert len(history) == 2 and history[0] == first  # with the seconds that it took then


# --- What is refused before the first training ---


def test_every_run_of_the_notebook_is_accepted(tiny_data, tmp_path, no_training):
    cells = json.loads((Path(module.__file__).parents[2] / 'compare.ipynb').read_text(encoding='utf-8'))['cells']
    settings, = (cell for cell in cells if 'parameters' in cell['metadata'].get('tags', []))
    names = {}
    exec(''.join(settings['source']), names)
    with pytest.raises(ZeroDivisionError):
        compare(names['runs'], {**names['cfg'], **tiny_data, 'device': 'cpu'}, tmp_path)


@pytest.mark.parametrize(('runs', 'message'), [
    *[({'a': own, 'b': {}}, "'b'.*in the run 'a'") for own in (
        dict(start_from='b'), dict(ensemble=['b']))],
    ({'a': {}, 'b': dict(ensemble=['a']), 'c': dict(ensemble=['a', 'b'])}, "'b'.*in the run 'c'"),
    ({'a': {}, 'b': dict(start_from='c'), 'c': dict(start_from='b')}, "'c'.*in the run 'b'"),
    ({'a': dict(start_from='a')}, "'a'.*in the run 'a'"),
    *[({'a': {}, 'b': own}, f"{message}.*in the run 'b'") for own, message in (
        (dict(decoder='lab.more.nope.Nope'), 'nope.py'), (dict(self_critical='mean'), 'self_critical'),
        (dict(teacher_forcing=0.5), 'teacher_forcing'), (dict(encoder='resnet7'), 'resnet7'),
        (dict(seed=7), 'seed'), (dict(batchsize=3), 'batchsize.*batch_size'))],
    ({'a': {}, 'b': dict(data_name='nothing')}, 'TEST_CAPTIONS_nothing.json'),
    *[({'a': {}, 'b': own}, f"{message}.*in the run 'b'") for own, message in (
        (dict(monitor='greedy_nope'), 'greedy_nope'), (dict(start_from='a', decoder_dim=20), 'size mismatch'),
        (dict(start_from='a', encoder_weights=None), 'encoder_weights'))],
    ({'lr 1e-3': {}, 'lr 1e+3': {}}, 'lr_1e_3')])
def test_wrong_settings_are_refused_before_any_training(cfg, tmp_path, no_training, runs, message):
    with pytest.raises(ValueError, match=f'(?s){message}'):
        compare(runs, cfg, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(('own', 'error', 'run'), [
    (dict(word_vectors='nowhere.txt'), OSError, 'b'), (dict(encoded_image_size=2), RuntimeError, 'c')])
def test_so_is_what_python_or_torch_refuse(cfg, tmp_path, no_training, own, error, run):
    with pytest.raises(error, match=f"in the run '{run}'"):
        compare({'a': {}, 'b': own, 'c': dict(ensemble=['a', 'b'])}, cfg, tmp_path)


@pytest.mark.parametrize(('owner', 'name'), [
    (base, 'true_or_own'), (captionnet.CaptionNet, 'one_step'), (captionnet.CaptionNet, 'word_scores'),
    (Ensemble, 'step'), (self_critical, 'surrogate_loss')])
def test_an_open_todo_of_a_decoder_stops_before_any_training(cfg, tmp_path, monkeypatch, no_training, owner, name):
    def to_do(*_):
        raise NotImplementedError('TODO 13: Ensemble.step is still to do: follow its steps in lab/more/ensembles.py')

    monkeypatch.setattr(owner, name, to_do)
    own = dict(decoder='lab.more.captionnet.CaptionNet', teacher_forcing=(1.0, 0.5))
    with pytest.raises(NotImplementedError, match='TODO 13'):
        compare({'a': {}, 'b': own, 'c': dict(start_from='a', self_critical='mean'), 'd': dict(ensemble=['a', 'b'])},
                cfg, tmp_path)


# --- The table ---


def columns(table):
    """The rows of a Markdown table, each a dict by the names of its columns."""
    names, _, *rows = ([cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines())
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_the_table_by_hand():
    def seed(bleu, best, **more):
        scores = [{'beam_size': beam, 'BLEU-1': 0.5, 'BLEU-4': bleu + beam / 100, 'CIDEr-D': 0.5 + beam / 10, **more}
                  for beam in (1, 3)]
        return dict(parameters=1234, best_epoch=best, epochs=9, scores=scores, captions_beam_size=3,
                    train_seconds=10 * (5 + best), reference_words=9.5)

    results = [dict(name='one', seeds=[seed(0.1, 4, METEOR=0.3), seed(0.2, 5)]),  # a metric that was there just once
               dict(name='two', seeds=[seed(0.3, 9)])]
    one, two = columns(comparison_table(results))
    assert one == {'decoder': 'one', 'parameters': '1,234', 'best epoch': '4 of 9, 5 of 9',
                   'BLEU-4, beam 1': '0.160 ± 0.071', 'BLEU-4, beam 3': '0.180 ± 0.071',
                   'BLEU-1, beam 3': '0.500 ± 0.000', 'CIDEr-D, beam 3': '0.800 ± 0.000', 'minutes': '1.6'}
    assert two['BLEU-4, beam 1'] == '0.310' and two['minutes'] == '2.3'
    mean = mean_scores(results[0])
    assert mean['model'] == 'one' and [row['BLEU-4'] for row in mean['scores']] == pytest.approx([0.16, 0.18])
