"""Several decoders compared: each is trained once and tested on the same pictures; a stopped comparison is resumed."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import solver
from create_input_files import create_input_files
from lab.data.shapes import generate_shapes
from lab.decode.coco_metrics import coco_scores
from lab.experiments import compare as module
from lab.experiments.compare import beam_table, compare, comparison_table, mean_and_std, mean_scores, side_by_side
from lab.more import captionnet, ensembles
from lab.more import decoder as base
from lab.train.checkpoints import build_model, checkpoint_paths, file_digest, read_checkpoint
from lab.train.resume import fingerprints as fingerprints_of
from solver import check_settings

RUNS = {
    'plain LSTM': dict(attention=False),
    'adaptive': dict(decoder='lab.more.adaptive.DecoderWithAdaptiveAttention', epochs=3),
    'adaptive, self-critical': dict(decoder='lab.more.adaptive.DecoderWithAdaptiveAttention', start_from='adaptive',
                                    self_critical='greedy', epochs=1),
    'both': dict(ensemble=['plain LSTM', 'adaptive']),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """METEOR's Java takes longer to start than everything else here; test_coco_metrics.py has it."""
    monkeypatch.setattr('lab.decode.coco_metrics.shutil', Mock())
    monkeypatch.setattr('lab.decode.coco_metrics._meteor', lambda *_: 0.25)


@pytest.fixture
def cfg(tiny_cfg):
    return {key: value for key, value in tiny_cfg.items() if key != 'output_folder'}


def test_every_run_is_trained_and_tested(cfg, tmp_path, capsys):
    results = compare(RUNS, cfg, tmp_path, seeds=(0, 1), beam_sizes=(1, 2, 3))
    assert [result['name'] for result in results] == list(RUNS)
    assert [len(result['seeds']) for result in results] == [2, 2, 2, 1]
    for result in results:
        epochs = 0 if result['name'] == 'both' else RUNS[result['name']].get('epochs', cfg['epochs'])
        for seed in result['seeds']:
            assert len(seed['history']) == epochs and len(seed['captions']) == 6
            assert [row['beam_size'] for row in seed['scores']] == [1, 2, 3]
            assert seed['captions_per_beam'][1] == [c['caption'] for c in seed['captions']]
            for row, captions in zip(seed['scores'], seed['captions_per_beam'], strict=True):
                coco = coco_scores([c['references'] for c in seed['captions']], captions)
                assert [row[name] for name in ('METEOR', 'ROUGE-L', 'CIDEr-D')] == pytest.approx(
                    [coco[name] for name in ('METEOR', 'ROUGE-L', 'CIDEr')], abs=1e-6)
    weights = [seed['parameters'] for result in results for seed in result['seeds']]
    assert weights[-1] == 2 * (weights[0] + weights[2])  # two seeds of each
    assert results[0]['seeds'][0]['history'] != results[0]['seeds'][1]['history']
    assert capsys.readouterr().out.count('Starting from the weights of') == 2

    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob('*') if path.is_file()}
    assert {'comparison.json', 'comparison.md', 'plain_LSTM/seed_0/test_NoAttention.json',
            'adaptive__self_critical/seed_1/BEST_checkpoint_DecoderWithAdaptiveAttention.pth.tar',
            'both/test_Ensemble.json', 'both/test_Ensemble_results.json', 'both/test_annotations.json'} <= files
    assert json.loads((tmp_path / 'comparison.json').read_text()) == json.loads(json.dumps(results))
    table = (tmp_path / 'comparison.md').read_text()
    table, per_beam = table.split('\n\n')
    rows = table.splitlines()
    assert len(per_beam.splitlines()) == 2 + 4 * 3
    assert per_beam.splitlines()[0].endswith('| BLEU-4 | CIDEr-D | METEOR | ROUGE-L |')
    assert len(rows) == 6 and len({row.count('|') for row in rows}) == 1
    assert '| 3 of 3' in rows[3] or '| 2 of 3' in rows[3] or '| 1 of 3' in rows[3]
    assert rows[5].startswith('| both | ') and '±' in rows[2] and '±' not in rows[5]
    for result in results:  # of the first seed
        result['seeds'][-1]['captions'][4]['caption'] = ['last']
        result['seeds'][0]['captions'][4]['caption'] = []
    assert side_by_side(results, 4).splitlines()[1] == 'adaptive: (nothing)'
    lines = side_by_side(results, 4).splitlines()
    assert [line.split(':')[0] for line in lines] == [*RUNS, 'people']


def test_every_run_of_the_notebook_can_be_built(tmp_path):
    """With its own settings: what a decoder refuses would come up after the runs before it were trained."""
    cells = json.loads((Path(module.__file__).parents[2] / 'compare.ipynb').read_text(encoding='utf-8'))['cells']
    settings_cell, = (cell for cell in cells if 'parameters' in cell['metadata'].get('tags', []))
    names = {}
    exec(''.join(settings_cell['source']), names)
    settings = {}
    for name, own in names['runs'].items():
        if 'ensemble' not in own:
            settings[name, 0] = module.run_settings(name, own, names['cfg'], tmp_path, 0, settings)
            build_model(settings[name, 0], {'<pad>': 0, 'a': 1})
    assert len(settings) > 10


def test_settings_are_chosen_on_the_validation_split(cfg, tmp_path):
    runs = {'plain LSTM': RUNS['plain LSTM'], 'alone': dict(ensemble=['plain LSTM'])}
    compare(runs, cfg, tmp_path, split='VAL')
    on_val = (tmp_path / 'val_comparison.md').read_text()
    files = {path.name for path in tmp_path.rglob('*') if path.is_file()}
    assert {'val_comparison.json', 'val_NoAttention.json', 'val_Ensemble.json'} <= files
    assert not {'comparison.md', 'test_NoAttention.json'} & files
    compare(runs, cfg, tmp_path)
    assert (tmp_path / 'comparison.md').read_text() != on_val == (tmp_path / 'val_comparison.md').read_text()
    with pytest.raises(ValueError, match="'plain LSTM': split is 'val'; it must be "):
        compare(runs, cfg, tmp_path, split='val')


def test_a_second_time_nothing_is_trained(cfg, tmp_path, monkeypatch):
    first = compare(RUNS, cfg, tmp_path)
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    again = compare(RUNS, cfg, tmp_path)
    for one, other in zip(first, again, strict=True):
        for seed, same in zip(one['seeds'], other['seeds'], strict=True):
            assert seed['history'] == same['history'] and seed['captions'] == same['captions']
    with pytest.raises(ZeroDivisionError):  # other settings are another run
        compare(RUNS, {**cfg, 'dropout': 0.2}, tmp_path)


def test_cut_files_are_named(cfg, tmp_path):
    runs = {'a': dict(epochs=1), 'b': dict(distill=['a'], epochs=1)}
    compare(runs, cfg, tmp_path)
    for name in ('b/seed_0/test_Attention.json', 'captions_by_a.json'):
        os.truncate(tmp_path / name, 100)
        with pytest.raises(ValueError, match=f'{name} is .*cut.*: delete it and run the comparison again$'):
            compare(runs, cfg, tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / 'b/seed_0/test_Attention.json').unlink()
    compare(runs, cfg, tmp_path)


def test_a_run_that_was_stopped_goes_on(cfg, tmp_path, monkeypatch):
    expected = compare({'a': dict(epochs=3)}, cfg, tmp_path / 'whole')
    real, calls = module.train, []

    def stopped(settings):
        monkeypatch.setattr('solver.validate', interrupted)
        return real(settings)

    from solver import validate

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return validate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, 'train', stopped)
        with pytest.raises(KeyboardInterrupt):
            compare({'a': dict(epochs=3)}, cfg, tmp_path / 'parts')
    monkeypatch.setattr('solver.validate', validate)
    resumed = compare({'a': dict(epochs=3)}, cfg, tmp_path / 'parts')
    assert without_seconds(resumed[0]['seeds'][0]) == without_seconds(expected[0]['seeds'][0])


def test_a_second_phase_is_trained_again_when_its_first_was(cfg, tmp_path, capsys):
    runs = {'a': {}, 'b': dict(start_from='a', decoder_lr=1e-3), 'both': dict(ensemble=['a', 'b'])}
    first = compare(runs, cfg, tmp_path)
    again = compare(runs | {'a': dict(decoder_lr=2e-3)}, cfg, tmp_path)
    assert capsys.readouterr().out.count('Starting from the weights of') == 2
    assert again[1]['seeds'][0]['history'] != first[1]['seeds'][0]['history']
    assert again[2]['seeds'][0]['provenance'] != first[2]['seeds'][0]['provenance']
    assert {path.name for path in (tmp_path / 'b/seed_0/earlier_1').iterdir()} == {
        'history_Attention.json', 'test_Attention.json', 'BEST_checkpoint_Attention.pth.tar',
        f"checkpoint_{cfg['data_name']}_Attention.pth.tar"}
    # as a run on its own it is another training
    alone = compare({'b': dict(decoder_lr=1e-3)}, cfg, tmp_path)
    assert alone[0]['seeds'][0]['history'] != again[1]['seeds'][0]['history']


def test_the_same_run_on_other_data_and_back(cfg, tmp_path):
    """Nothing of the one is taken for the other's."""
    json_path, = Path(cfg['data_folder']).glob('dataset_*.json')
    other = create_input_files('shapes', json_path, json_path.parent, min_word_freq=30, output_folder=tmp_path / 'data',
                               workers=1)
    others = cfg | {'data_folder': str(tmp_path / 'data'), 'data_name': other['data_name']}
    runs = {'a': dict(epochs=1)}
    first, second, third = (compare(runs, settings, tmp_path / 'runs')[0]['seeds'][0]
                            for settings in (cfg, others, cfg))
    assert first['parameters'] == third['parameters'] > second['parameters']
    assert without_seconds(first) == without_seconds(third) != without_seconds(second)


def test_the_same_names_with_other_pictures(cfg, tmp_path, capsys):
    """More were drawn: what was tested, or trained and tested, before is of other captions."""
    results_of = {}
    for train, test, kept in ((24, 6, 1), (24, 8, 2), (26, 8, 1)):
        folder = tmp_path / f'{train}_{test}'
        json_path = generate_shapes(folder, train=train, val=6, test=test)
        name = create_input_files('few', json_path, folder, min_word_freq=1, output_folder=folder,
                                  workers=1)['data_name']
        (tmp_path / 'data').unlink(missing_ok=True)
        (tmp_path / 'data').symlink_to(folder)
        own = {**cfg, 'data_folder': str(tmp_path / 'data'), 'data_name': name}
        runs = {'a': dict(epochs=1), 'both': dict(ensemble=['a'])}
        results_of[train, test] = compare(runs, own, tmp_path / 'runs')
        assert compare(runs, own, tmp_path / 'runs') == results_of[train, test]
        assert capsys.readouterr().out.count('it is not trained again.') == kept
    for (_, test), results in results_of.items():
        assert [len(result['seeds'][0]['captions']) for result in results] == [test, test]
    losses = [results[0]['seeds'][0]['history'][0]['train_loss'] for results in results_of.values()]
    assert losses[0] == losses[1] != losses[2]


def trained_anew(capsys):
    """How many were, since the last call."""
    return capsys.readouterr().out.count('it is trained again')


def test_a_changed_loss_trains_anew(cfg, tmp_path, capsys, monkeypatch, other_source):
    """All code counts: a changed solver.py, lab/ or models.py trains every run anew, a comment none."""
    runs = {'a': dict(attention=False), 'b': dict(attention=True), 'both': dict(ensemble=['a', 'b']),
            'c': dict(distill=['a', 'b'], epochs=1)}
    monkeypatch.setattr(module, 'evaluate', tests := Mock(wraps=module.evaluate))

    def done():
        """Trained anew and tested since the last call."""
        counts = trained_anew(capsys), tests.call_count
        tests.reset_mock()
        return counts

    first = compare(runs, cfg, tmp_path)
    assert done() == (0, 4)
    assert compare(runs, cfg, tmp_path) == first and done() == (0, 0)
    with other_source('solver', lambda code: code + b'# a comment'):
        assert compare(runs, cfg, tmp_path) == first and done() == (0, 0)
    with monkeypatch.context() as patch, other_source('solver', lambda code: code.replace(
            b'** 2).mean()', b'** 4).mean()')):
        patch.setattr(solver, 'doubly_stochastic_penalty', lambda alpha: ((1 - alpha.sum(dim=1)) ** 4).mean())
        second = compare(runs, cfg, tmp_path)
        assert done()[0] == 3
        losses = [[result['seeds'][0]['history'][0]['train_loss'] for result in results[:2]]
                  for results in (first, second)]
        assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]


def test_other_files_under_the_same_names(cfg, tmp_path, capsys):
    """Word vectors, and the encoder's weights."""
    words = json.loads((Path(cfg['data_folder']) / f"WORDMAP_{cfg['data_name']}.json").read_text())
    vectors, weights = tmp_path / 'vectors.txt', tmp_path / 'weights.pth'
    encoder = build_model(check_settings(cfg), words).encoder.stages.state_dict()
    runs = {'a': dict(word_vectors=str(vectors)), 'b': dict(start_from='a', word_vectors=str(vectors), epochs=1)}
    results = []
    for number in (0.25, 0.25, 0.5):
        vectors.write_text(''.join(f'{word} {" ".join([str(number)] * cfg["embed_dim"])}\n' for word in words))
        results.append(compare(runs, cfg, tmp_path / 'runs'))
        assert trained_anew(capsys) == (2 if number == 0.5 else 0)  # what begins with it, too
    assert results[0] == results[1]
    assert [epoch['train_loss'] for epoch in results[0][1]['seeds'][0]['history']] != [
        epoch['train_loss'] for epoch in results[2][1]['seeds'][0]['history']]
    fingerprints = []
    for number in (0.25, 0.5):
        torch.save({key: value.double().fill_(number) for key, value in encoder.items()}, weights)
        fingerprints.append(fingerprints_of(check_settings({**cfg, 'encoder_weights': str(weights)})))
    assert fingerprints[0] != fingerprints[1]


def test_other_questions_about_the_same_weights(cfg, tmp_path, capsys, monkeypatch):
    one, = compare({'a': {}}, cfg, tmp_path, beam_sizes=(1, 3))
    other, = compare({'a': {}}, cfg, tmp_path, beam_sizes=(1, 2))
    assert [[row['beam_size'] for row in result['seeds'][0]['scores']] for result in (one, other)] == [[1, 3], [1, 2]]
    monkeypatch.setattr(module, 'coco_scores', lambda references, captions, log: {'METEOR': 0.5, 'ROUGE-L': 0.5})
    third, = compare({'a': {}}, cfg, tmp_path, beam_sizes=(2, 4))
    assert [row['METEOR'] for row in third['seeds'][0]['scores']] == [0.5, 0.5]
    assert trained_anew(capsys) == 0


def test_the_same_folder_by_another_name(cfg, tmp_path, capsys, monkeypatch):
    compare({'a': {}}, cfg, tmp_path)
    folder = Path(cfg['data_folder'])
    monkeypatch.chdir(folder.parent)
    compare({'a': {}}, {**cfg, 'data_folder': f'./{folder.name}/'}, tmp_path)
    assert trained_anew(capsys) == 0


def test_what_is_still_to_be_written_and_not_needed(cfg, tmp_path, monkeypatch):
    def to_do(*_):
        raise NotImplementedError('TODO 11: true_or_own is still to do: follow its steps in lab/more/decoder.py')

    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    monkeypatch.setattr(base, 'true_or_own', to_do)
    own = dict(decoder='lab.more.captionnet.CaptionNet')
    with pytest.raises(NotImplementedError, match='TODO 11: true_or_own is still to do'):
        compare({'a': {}, 'b': dict(**own, teacher_forcing=(1.0, 0.5))}, cfg, tmp_path)
    monkeypatch.setattr(captionnet.CaptionNet, 'one_step', to_do)
    with pytest.raises(NotImplementedError, match='TODO 11: true_or_own is still to do'):
        compare({'a': {}, 'b': own}, cfg, tmp_path)
    monkeypatch.setattr(captionnet.CaptionNet, 'step', lambda self, words, state, memory: (
        torch.ones(len(words), self.vocab_size), state, torch.ones(len(words), 16)))  # it does not call one_step
    with pytest.raises(ZeroDivisionError):
        compare({'a': own}, cfg, tmp_path)


def test_what_is_still_to_be_written_is_said_first(cfg, tmp_path, monkeypatch):
    def to_do(*_):
        raise NotImplementedError('TODO 13: Ensemble.step is still to do: follow its steps in lab/more/ensembles.py')

    to_do.__module__ = 'lab.more.ensembles'
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    monkeypatch.setattr(ensembles.Ensemble, 'step', to_do)
    for own in (dict(ensemble=['a']), dict(distill=['a'])):
        with pytest.raises(NotImplementedError, match='TODO 13: Ensemble.step is still to do'):
            compare({'a': {}, 'b': own}, cfg, tmp_path)
    monkeypatch.setattr(captionnet.CaptionNet, 'word_scores', to_do)
    monkeypatch.setattr(module, 'surrogate_loss', to_do)
    monkeypatch.setattr(module.word_vectors, 'load', to_do)
    vectors = tmp_path / 'vectors.txt'
    vectors.write_text('red 1\n')
    for own in (dict(decoder='lab.more.captionnet.CaptionNet'), dict(start_from='a', self_critical='mean'),
                dict(word_vectors=str(vectors))):
        with pytest.raises(NotImplementedError, match='TODO 13'):
            compare({'a': {}, 'b': own}, cfg, tmp_path)


def test_captions_by_two_runs_and_by_one_with_both_names(cfg, tmp_path):
    runs = {'a': {}, 'b': {}, 'a and b': {}, 'by two': dict(distill=['a', 'b']), 'by one': dict(distill='a and b')}
    settings = module.all_settings(runs, cfg, tmp_path, (0,), 'TEST')
    assert settings['by two', 0]['captions'] != settings['by one', 0]['captions']


def test_the_best_weights_of_each_seed(cfg, tmp_path, monkeypatch):
    """They are tested, and start second phases; here those of the first of two epochs."""
    from solver import validate
    monkeypatch.setattr('solver.validate', lambda model, *others: {
        **validate(model, *others), 'greedy_bleu4': 1.0 / (1 + len(model.history))})
    runs = {'a': {}, 'b': dict(start_from='a', epochs=1), 'both': dict(ensemble=['a'])}
    results = compare(runs, cfg, tmp_path, seeds=(0, 1))
    settings = module.all_settings(runs, cfg, tmp_path, (0, 1), 'TEST')
    best, latest = ([file_digest(checkpoint_paths(settings['a', seed])[which])
                     for seed in (0, 1)] for which in (1, 0))
    assert [seed['best_epoch'] for seed in results[0]['seeds']] == [1, 1] and not set(best) & set(latest)
    assert [seed['provenance']['checkpoints'] for seed in results[0]['seeds']] == [[one] for one in best]
    assert results[2]['seeds'][0]['provenance']['checkpoints'] == best
    for seed in (0, 1):
        second = settings['b', seed]
        assert file_digest(second['start_from']) == best[seed]
        assert read_checkpoint(checkpoint_paths(second)[0])['fingerprints']['start_from file'] == best[seed]


def without_seconds(seed):
    return [{**epoch, 'seconds': 0} for epoch in seed['history']]


def test_what_is_refused_leaves_what_is_there(cfg, tmp_path, monkeypatch):
    """Also where it comes up only when training begins."""
    compare({'a': dict(epochs=1)}, cfg, tmp_path)
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob('*'))
    vectors = tmp_path.with_name('no_vectors.txt')
    vectors.write_text('nothing\n')
    with pytest.raises(ValueError, match='0 numbers follow the word'):
        compare({'a': dict(epochs=1, word_vectors=str(vectors))}, cfg, tmp_path)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob('*')) == files
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    compare({'a': dict(epochs=1)}, cfg, tmp_path)


def test_a_metric_that_could_not_be_had_once():
    seed = dict(parameters=1, best_epoch=1, epochs=1, captions_beam_size=1, train_seconds=60,
                scores=[{'beam_size': 1, 'BLEU-1': 0.5, 'BLEU-4': 0.25, 'CIDEr-D': 0.75}])
    had = [seed['scores'][0] | {'METEOR': 0.125}]
    rows = comparison_table([dict(name='one', seeds=[seed, seed | dict(scores=had)]),
                             dict(name='two', seeds=[seed | dict(scores=had)])]).splitlines()
    assert rows[0].endswith('| CIDEr-D, beam 1 | METEOR, beam 1 | minutes |')
    assert rows[2].endswith('| 0.750 ± 0.000 |  | 1.0 |') and rows[3].endswith('| 0.750 | 0.125 | 1.0 |')


def test_where_second_phases_begin(cfg, tmp_path):
    runs = {'a': dict(epochs=3), 'b': dict(start_from='a'), 'c': dict(start_from='b')}
    results = compare(runs, cfg, tmp_path, seeds=(0, 1))
    first, second, third = ([(seed['begins'][0], seed['best_epoch']) for seed in result['seeds']] for result in results)
    assert [seed['begins'] for seed in results[0]['seeds']] == [(0, None)] * 2
    for before, after in zip(results, results[1:], strict=False):
        for one, other in zip(before['seeds'], after['seeds'], strict=True):
            assert other['begins'][1] == one['history'][one['best_epoch'] - 1]
    assert [begins for begins, _ in second] == [sum(seed) for seed in first]
    assert [begins for begins, _ in third] == [sum(seed) for seed in second]


@pytest.mark.parametrize(('runs', 'message'), [
    *[({'a': own, 'b': {}}, "'a': .*, but no trained run above it is called 'b'") for own in (
        dict(start_from='b'), dict(ensemble=['b']), dict(distill='b'))],
    ({'a': {}, 'b': dict(ensemble=['a']), 'c': dict(ensemble=['a', 'b'])}, "no trained run above it is called 'b'"),
    ({'a': {}, 'b': dict(start_from='c'), 'c': dict(start_from='b')}, "no trained run above it is called 'c'"),
    ({'a': dict(start_from='a')}, "no trained run above it is called 'a'"),
    *[({'a': {}, 'b': own}, f"'b': {message}") for own, message in (
        (dict(decoder='lab.more.captionnet.Nope'), "setting 'decoder' is 'lab.more.captionnet.Nope'.* no class Nope"),
        (dict(decoder='lab.more.cells.DecoderWithCell', decoder_options=dict(cell='gru')), "cell is 'gru'"),
        (dict(decoder='lab.more.captionnet.CaptionNet', decoder_options=dict(heads=3)), 'heads is 3; it must be'),
        (dict(self_critical='mean'), "setting 'self_critical' is 'mean', which goes on from a trained decoder"),
        (dict(teacher_forcing=0.5), "setting 'teacher_forcing' is 0.5, but DecoderWithAttention is always fed"),
        (dict(word_vectors='nowhere.txt'), "setting 'word_vectors' is 'nowhere.txt', and there is no such file"),
        (dict(encoder='resnet7'), "unknown encoder 'resnet7'"),
        (dict(seed=7), 'seed cannot be set for a single run'),
        (dict(batchsize=3), "unknown setting 'batchsize'.*batch_size"))],
    *[({'a': {}, 'b': dict(start_from='a', **own)}, "'b': start_from is 'a', which has another decoder, other") for own
      in (dict(attention=False), dict(decoder_dim=20))],
    ({'a': {}, 'b': dict(data_name='nothing')}, 'TEST_IMAGES_nothing.hdf5 is not there'),
    ({'a': {}, 'A': {}}, "'A': the run 'a' has the same folder"),
    ({'lr 1e-3': {}, 'lr 1e+3': {}}, "the run 'lr 1e-3' has the same folder, lr_1e_3")])
def test_what_cannot_be_is_said_before_anything_is_trained(cfg, tmp_path, monkeypatch, runs, message):
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        compare(runs, cfg, tmp_path)
    assert not list(Path(tmp_path).iterdir())


def test_tables_by_hand():
    def seed(bleu, best):
        scores = [{'beam_size': beam, 'BLEU-1': 0.47 + bleu + beam / 100, 'BLEU-2': 0.4, 'BLEU-3': 0.3,
                   'BLEU-4': bleu + beam / 100,
                   'CIDEr-D': 0.5 + beam / 10, **({'ROUGE-L': 0.3} if best != 9 else {})} for beam in (1, 3)]
        return dict(parameters=1234, best_epoch=best, epochs=9, scores=scores, captions_beam_size=3,
                    train_seconds=10 * (5 + best), reference_words=9.5)

    results = [dict(name='one', seeds=[seed(0.1, 4), seed(0.2, 5)]), dict(name='two', seeds=[seed(0.3, 9)])]
    table = comparison_table(results)
    assert table.splitlines()[2] == (
        '| one | 1,234 | 4 of 9, 5 of 9 | 0.160 ± 0.071 | 0.180 ± 0.071 | 0.650 ± 0.071 | 0.800 ± 0.000 '
        '| 0.300 ± 0.000 | 1.6 |')
    assert table.splitlines()[3] == '| two | 1,234 | 9 of 9 | 0.310 | 0.330 | 0.800 | 0.800 |  | 2.3 |'
    assert mean_and_std([0.25]) == '0.250'
    rows = beam_table(results).splitlines()
    assert rows[0] == '| decoder | beam | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | CIDEr-D | ROUGE-L |'
    assert rows[2] == ('| one | 1 | 0.630 ± 0.071 | 0.400 ± 0.000 | 0.300 ± 0.000 | 0.160 ± 0.071 | 0.600 ± 0.000 '
                       '| 0.300 ± 0.000 |')
    assert rows[3].startswith('|  | 3 | 0.650 ± 0.071 |')
    assert rows[5] == '|  | 3 | 0.800 | 0.400 | 0.300 | 0.330 | 0.800 |  |'
    one = mean_scores(results[0])
    assert one['model'] == 'one' and [row['beam_size'] for row in one['scores']] == [1, 3]
    assert [row['BLEU-4'] for row in one['scores']] == pytest.approx([0.16, 0.18])
