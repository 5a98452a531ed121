"""Several decoders side by side: each trained once, tested on the same pictures, and gone on with after a stop."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import solver
from create_input_files import create_input_files
from lab.data.shapes import generate_shapes
from lab.decode.coco_metrics import coco_scores
from lab.experiments import compare as module
from lab.experiments.compare import beam_table, compare, comparison_table, mean_scores, of_seeds, side_by_side
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
            assert seed['said'][1] == [c['caption'] for c in seed['captions']]
            for row, said in zip(seed['scores'], seed['said'], strict=True):
                coco = coco_scores([c['references'] for c in seed['captions']], said)
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
    table, of_beams = table.split('\n\n')
    rows = table.splitlines()
    assert len(of_beams.splitlines()) == 2 + 4 * 3
    assert of_beams.splitlines()[0].endswith('| BLEU-4 | CIDEr-D | METEOR | ROUGE-L |')
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
    trained = [name for name, own in names['runs'].items() if 'ensemble' not in own]
    assert len(trained) > 10
    for name in trained:
        build_model(module.settings(name, names['runs'], names['cfg'], tmp_path, 0), {'<pad>': 0, 'a': 1})


def test_settings_are_chosen_on_the_validation_split(cfg, tmp_path):
    runs = {'plain LSTM': RUNS['plain LSTM'], 'alone': dict(ensemble=['plain LSTM'])}
    compare(runs, cfg, tmp_path, split='VAL')
    on_val = (tmp_path / 'val_comparison.md').read_text()
    files = {path.name for path in tmp_path.rglob('*') if path.is_file()}
    assert {'val_comparison.json', 'val_NoAttention.json', 'val_Ensemble.json'} <= files
    assert not {'comparison.md', 'test_NoAttention.json'} & files
    compare(runs, cfg, tmp_path)
    assert (tmp_path / 'comparison.md').read_text() != on_val == (tmp_path / 'val_comparison.md').read_text()
    with pytest.raises(ValueError, match="split is 'TRAIN'; it must be 'TEST', or 'VAL' while you choose settings"):
        compare(runs, cfg, tmp_path, split='TRAIN')


def test_a_second_time_nothing_is_trained(cfg, tmp_path, monkeypatch):
    first = compare(RUNS, cfg, tmp_path)
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    again = compare(RUNS, cfg, tmp_path)
    for one, other in zip(first, again, strict=True):
        for seed, same in zip(one['seeds'], other['seeds'], strict=True):
            assert seed['history'] == same['history'] and seed['captions'] == same['captions']
    with pytest.raises(ZeroDivisionError):  # other settings are another run
        compare(RUNS, {**cfg, 'dropout': 0.2}, tmp_path)


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
    found = compare({'a': dict(epochs=3)}, cfg, tmp_path / 'parts')
    assert [{**epoch, 'seconds': 0} for epoch in found[0]['seeds'][0]['history']] == [
        {**epoch, 'seconds': 0} for epoch in expected[0]['seeds'][0]['history']]


def test_a_second_phase_is_trained_again_when_its_first_was(cfg, tmp_path, capsys):
    runs = {'a': {}, 'b': dict(start_from='a', decoder_lr=1e-3), 'both': dict(ensemble=['a', 'b'])}
    first = compare(runs, cfg, tmp_path)
    again = compare(runs | {'a': dict(decoder_lr=2e-3)}, cfg, tmp_path)
    assert capsys.readouterr().out.count('Starting from the weights of') == 2
    assert again[1]['seeds'][0]['history'] != first[1]['seeds'][0]['history']
    assert again[2]['seeds'][0]['made_of'] != first[2]['seeds'][0]['made_of']
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
    found = {}
    for train, test, taken in ((24, 6, 1), (24, 8, 2), (26, 8, 1)):
        folder = tmp_path / f'{train}_{test}'
        json_path = generate_shapes(folder, train=train, val=6, test=test)
        name = create_input_files('few', json_path, folder, min_word_freq=1, output_folder=folder,
                                  workers=1)['data_name']
        (tmp_path / 'data').unlink(missing_ok=True)
        (tmp_path / 'data').symlink_to(folder)
        own = {**cfg, 'data_folder': str(tmp_path / 'data'), 'data_name': name}
        runs = {'a': dict(epochs=1), 'both': dict(ensemble=['a'])}
        found[train, test] = compare(runs, own, tmp_path / 'runs')
        assert compare(runs, own, tmp_path / 'runs') == found[train, test]
        assert capsys.readouterr().out.count('it is taken as it is.') == taken
    for (_, test), results in found.items():
        assert [len(result['seeds'][0]['captions']) for result in results] == [test, test]
    losses = [results[0]['seeds'][0]['history'][0]['train_loss'] for results in found.values()]
    assert losses[0] == losses[1] != losses[2]


def trained_anew(capsys):
    """How many were, since the last call."""
    return capsys.readouterr().out.count('it is trained anew')


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
        losses = [[result['seeds'][0]['history'][0]['train_loss'] for result in found[:2]] for found in (first, second)]
        assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]


def test_other_files_under_the_same_names(cfg, tmp_path, capsys):
    """Word vectors, and the encoder's weights."""
    words = json.loads((Path(cfg['data_folder']) / f"WORDMAP_{cfg['data_name']}.json").read_text())
    vectors, weights = tmp_path / 'vectors.txt', tmp_path / 'weights.pth'
    encoder = build_model(check_settings(cfg), words).encoder.stages.state_dict()
    runs = {'a': dict(word_vectors=str(vectors)), 'b': dict(start_from='a', word_vectors=str(vectors), epochs=1)}
    found = []
    for number in (0.25, 0.25, 0.5):
        vectors.write_text(''.join(f'{word} {" ".join([str(number)] * cfg["embed_dim"])}\n' for word in words))
        found.append(compare(runs, cfg, tmp_path / 'runs'))
        assert trained_anew(capsys) == (2 if number == 0.5 else 0)  # what begins with it, too
    assert found[0] == found[1]
    assert [epoch['train_loss'] for epoch in found[0][1]['seeds'][0]['history']] != [
        epoch['train_loss'] for epoch in found[2][1]['seeds'][0]['history']]
    fingerprints = []
    for number in (0.25, 0.5):
        torch.save({key: value.double().fill_(number) for key, value in encoder.items()}, weights)
        fingerprints.append(fingerprints_of(check_settings({**cfg, 'encoder_weights': str(weights)})))
    assert fingerprints[0] != fingerprints[1]


def test_other_questions_about_the_same_weights(cfg, tmp_path, capsys, monkeypatch):
    one, = compare({'a': {}}, cfg, tmp_path, beam_sizes=(1, 3))
    other, = compare({'a': {}}, cfg, tmp_path, beam_sizes=(1, 2))
    assert [[row['beam_size'] for row in result['seeds'][0]['scores']] for result in (one, other)] == [[1, 3], [1, 2]]
    monkeypatch.setattr(module, 'coco_scores', lambda references, captions, say: {'METEOR': 0.5, 'ROUGE-L': 0.5})
    found, = compare({'a': {}}, cfg, tmp_path, beam_sizes=(2, 4))
    assert [row['METEOR'] for row in found['seeds'][0]['scores']] == [0.5, 0.5]
    assert trained_anew(capsys) == 0


def test_the_same_folder_by_another_name(cfg, tmp_path, capsys, monkeypatch):
    compare({'a': {}}, cfg, tmp_path)
    folder = Path(cfg['data_folder'])
    monkeypatch.chdir(folder.parent)
    compare({'a': {}}, {**cfg, 'data_folder': f'./{folder.name}/'}, tmp_path)
    assert trained_anew(capsys) == 0


def test_other_weights_of_the_encoder(cfg, tmp_path, capsys, monkeypatch):
    """Under the same name, which no file of the settings says."""
    runs = {'a': dict(epochs=1), 'b': dict(start_from='a', epochs=1, fine_tune_encoder=True)}
    compare(runs, cfg, tmp_path)
    real = module.build_encoder

    def other(cfg):
        encoder = real(cfg)
        for weight in encoder.parameters():
            weight.data *= 1.5
        return encoder

    assert compare(runs, cfg, tmp_path) and trained_anew(capsys) == 0
    monkeypatch.setattr(module, 'build_encoder', other)
    monkeypatch.setattr(module, 'train', lambda cfg: pytest.fail('as expected', pytrace=False))
    with pytest.raises(pytest.fail.Exception):
        compare(runs, cfg, tmp_path)
    assert 'a/seed_0 holds a training that differs in encoder: it is trained anew.' in capsys.readouterr().out


def test_word_vectors_of_a_second_phase_only(cfg, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    vectors = tmp_path / 'vectors.txt'
    vectors.write_text('red 1\n')
    with pytest.raises(ValueError, match="'b' has word_vectors, but 'a', from which it starts, has none"):
        compare({'a': {}, 'b': dict(start_from='a', word_vectors=str(vectors))}, cfg, tmp_path)


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
        torch.ones(len(words), self.vocab_size), state, None))  # it has no need of one_step
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


@pytest.mark.parametrize(('given', 'message'), [
    (dict(cfg=None), 'cfg is None; it must be a dict'), (dict(cfg=['a']), r"cfg is \['a'\]; it must be a dict"),
    (dict(output_folder=None), "output_folder is 'None'; it must be a folder"),
    (dict(output_folder=__file__), 'test_compare.py.; it must be a folder'),
    *[(dict(shown=shown), r'shown is .*; it must be a list of whole numbers from 0 to 5: the split has 6 pictures')
      for shown in (3, [], [1.0], [6], [-1], 'a', [True])],
    (dict(split='val'), "split is 'val'; it must be 'TEST'"),
    (dict(seeds=[2 ** 32]), 'seeds is .*, from 0 on, below 2 .. 32')])
def test_arguments_that_cannot_be(cfg, tmp_path, monkeypatch, given, message):
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    with pytest.raises(ValueError, match=message):
        compare(**(dict(runs={'a': {}}, cfg=cfg, output_folder=tmp_path / 'runs') | given))
    with pytest.raises(ValueError, match="cfg has checkpoint='x.tar'; a comparison goes on by itself"):
        compare({'a': {}}, {**cfg, 'checkpoint': 'x.tar'}, tmp_path)
    with pytest.raises(ValueError, match="'a' has checkpoint='x.tar'; runs have none of their own"):
        compare({'a': dict(checkpoint='x.tar')}, cfg, tmp_path)


def test_a_split_that_is_not_there(cfg, tmp_path, monkeypatch):
    shutil.copytree(cfg['data_folder'], tmp_path / 'data')
    monkeypatch.setattr(module, 'train', lambda *_: 1 / 0)
    images = tmp_path / 'data' / f"TEST_IMAGES_{cfg['data_name']}.hdf5"
    images.unlink()
    with pytest.raises(FileNotFoundError, match=f'{images.name} is not there: run create_input_files first'):
        compare({'a': {}}, {**cfg, 'data_folder': str(tmp_path / 'data')}, tmp_path / 'runs')


def test_a_name_with_a_bar():
    seed = dict(parameters=1, best_epoch=1, epochs=1, captions_beam_size=1, train_seconds=60,
                scores=[{f'BLEU-{n}': 0.5 for n in (1, 2, 3, 4)} | {'beam_size': 1, 'CIDEr-D': 0.75}])
    for table in (comparison_table, beam_table):
        assert '| a \\| b |' in table([dict(name='a | b', seeds=[seed])])


def test_the_best_weights_of_each_seed(cfg, tmp_path, monkeypatch):
    """They are tested, and start second phases; here those of the first of two epochs."""
    from solver import validate
    monkeypatch.setattr('solver.validate', lambda model, *others: {
        **validate(model, *others), 'greedy_bleu4': 1.0 / (1 + len(model.history))})
    runs = {'a': {}, 'b': dict(start_from='a', epochs=1), 'both': dict(ensemble=['a'])}
    results = compare(runs, cfg, tmp_path, seeds=(0, 1))
    best, latest = ([file_digest(checkpoint_paths(module.settings('a', runs, cfg, tmp_path, seed))[which])
                     for seed in (0, 1)] for which in (1, 0))
    assert [seed['best_epoch'] for seed in results[0]['seeds']] == [1, 1] and not set(best) & set(latest)
    assert [seed['made_of']['checkpoints'] for seed in results[0]['seeds']] == [[one] for one in best]
    assert results[2]['seeds'][0]['made_of']['checkpoints'] == best
    for seed in (0, 1):
        second = module.settings('b', runs, cfg, tmp_path, seed)
        assert file_digest(second['start_from']) == best[seed]
        assert read_checkpoint(checkpoint_paths(second)[0])['fingerprints']['start_from file'] == best[seed]


def test_stopped_among_its_last_files(cfg, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, 'write_coco_files', stop)
        with pytest.raises(KeyboardInterrupt):
            compare({'a': dict(epochs=1)}, cfg, tmp_path)
    first = compare({'a': dict(epochs=1)}, cfg, tmp_path)
    folder = tmp_path / 'a' / 'seed_0'
    assert (folder / 'test_Attention_results.json').exists() and (folder / 'test_annotations.json').exists()
    text = (folder / 'test_Attention.json').read_text()
    (folder / 'test_Attention.json').write_text(text[:1000])  # a full disk, say
    again, = compare({'a': dict(epochs=1)}, cfg, tmp_path)
    assert again['seeds'][0]['captions'] == first[0]['seeds'][0]['captions']
    monkeypatch.setattr(module, 'write_coco_files', stop)
    with pytest.raises(KeyboardInterrupt):  # of another beam: the files beside the scores may be its own by now
        compare({'a': dict(epochs=1)}, cfg, tmp_path, beam_sizes=[2])
    assert not (folder / 'test_Attention.json').exists()


def test_what_teachers_said_is_not_whole(cfg, tmp_path, capsys):
    runs = {'a': dict(epochs=1), 'b': dict(distill=['a'], epochs=1)}
    first = compare(runs, cfg, tmp_path)
    said, text = tmp_path / 'said_by_a.json', (tmp_path / 'said_by_a.json').read_text()
    for broken in ('', '{}', '[]', text[:50]):
        said.write_text(broken)
        assert compare(runs, cfg, tmp_path) == first and said.read_text() == text
    assert trained_anew(capsys) == 0


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


@pytest.mark.parametrize('what', ['seeds', 'beam_sizes'])
@pytest.mark.parametrize('numbers', [3, (), [1, 1], [1, 'x'], [1, -1], [1, 1.5], [[1]], [True], None])
def test_numbers_that_are_none(cfg, tmp_path, what, numbers):
    with pytest.raises(ValueError, match=f'{what} is .*; it must be a list of different whole numbers, from [01] on'):
        compare({'a': {}}, cfg, tmp_path, **{what: numbers})
    with pytest.raises(ValueError, match='beam_sizes is .*, from 1 on'):
        compare({'a': {}}, cfg, tmp_path, beam_sizes=[0])


def test_a_metric_is_made_up_for_when_it_can_be_had(cfg, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr('lab.decode.coco_metrics._meteor', lambda *_: 1 / 0)
        first, = compare({'a': {}}, cfg, tmp_path)
    assert all('METEOR' not in row and 'ROUGE-L' in row for row in first['seeds'][0]['scores'])
    monkeypatch.setattr(module, 'evaluate', lambda *_, **__: 1 / 0)  # but nothing is captioned again
    again, = compare({'a': {}}, cfg, tmp_path)
    for row in first['seeds'][0]['scores']:
        row['METEOR'] = 0.25
    assert again == first
    monkeypatch.setattr(module, 'coco_scores', lambda *_: 1 / 0)
    assert compare({'a': {}}, cfg, tmp_path) == [first]


def test_a_metric_that_could_not_be_had_once():
    seed = dict(parameters=1, best_epoch=1, epochs=1, captions_beam_size=1, train_seconds=60,
                scores=[{'beam_size': 1, 'BLEU-1': 0.5, 'BLEU-4': 0.25, 'CIDEr-D': 0.75}])
    had = [seed['scores'][0] | {'METEOR': 0.125}]
    rows = comparison_table([dict(name='one', seeds=[seed, seed | dict(scores=had)]),
                             dict(name='two', seeds=[seed | dict(scores=had)])]).splitlines()
    assert rows[0].endswith('| CIDEr-D, beam 1 | METEOR, beam 1 | minutes |')
    assert rows[2].endswith('| 0.750 ± 0.000 |  | 1.0 |') and rows[3].endswith('| 0.750 | 0.125 | 1.0 |')


def test_where_second_phases_begin(cfg, tmp_path):
    found = compare({'a': dict(epochs=3), 'b': dict(start_from='a'), 'c': dict(start_from='b')}, cfg, tmp_path, (0, 1))
    first, second, third = ([(seed['begins'][0], seed['best_epoch']) for seed in result['seeds']] for result in found)
    assert [seed['begins'] for seed in found[0]['seeds']] == [(0, None)] * 2
    for before, after in zip(found, found[1:], strict=False):
        for one, other in zip(before['seeds'], after['seeds'], strict=True):
            assert other['begins'][1] == one['history'][one['best_epoch'] - 1]
    assert [begins for begins, _ in second] == [sum(seed) for seed in first]
    assert [begins for begins, _ in third] == [sum(seed) for seed in second]


@pytest.mark.parametrize(('runs', 'message'), [
    ({'a': dict(start_from='b'), 'b': {}}, "'a' has start_from='b', but no trained run above it is called 'b'"),
    ({'a': {}, 'c': dict(ensemble=['a', 'x'])}, "'c' has ensemble=.*, but no trained run above it is called 'x'"),
    *[({'a': {}, 'c': own}, "'c' must have a list of names of runs above as 'ensemble', and nothing else") for own in (
        dict(ensemble=[]), dict(ensemble='a'), dict(ensemble=['a'], epochs=3))],
    ({'a': {}, 'b': dict(ensemble=['a']), 'c': dict(ensemble=['b', 'a'])}, "no trained run above it is called 'b'"),
    ({'a': {}, 'b': dict(ensemble=['a']), 'c': dict(start_from='b')}, "no trained run above it is called 'b'"),
    ({'a': {}, 'b': dict(encoded_image_size=2), 'c': dict(ensemble=['a', 'b'])},
     "'c': 'b' and 'a' have not the same data and encoder"),
    *[({'a': {}, 'b': own}, f"'b': {message}") for own, message in (
        (dict(decoder='lab.more.captionnet.Nope'), "setting 'decoder' is 'lab.more.captionnet.Nope'.* no class Nope"),
        (dict(decoder='lab.more.cells.DecoderWithCell', decoder_options=dict(cell='gru')), "cell is 'gru'"),
        (dict(decoder='lab.more.cells.DecoderWithCell', decoder_options=dict(cell=['GRU'])), r"cell is \['GRU'\]"),
        *[(dict(decoder='lab.more.captionnet.CaptionNet', decoder_options=dict(heads=heads)),
           f'heads is {heads!r}; it must be')
          for heads in (3, 0, -1, 2.0, '2')],
        (dict(self_critical='mean'), "setting 'self_critical' is 'mean', which goes on from a trained decoder"),
        (dict(teacher_forcing=0.5), "setting 'teacher_forcing' is 0.5, but DecoderWithAttention is always fed"),
        (dict(word_vectors='nowhere.txt'), "setting 'word_vectors' is 'nowhere.txt', and there is no such file"),
        (dict(encoder='resnet7'), "unknown encoder 'resnet7'"))],
    ({'a': {}, 'b': dict(data_name='nothing')}, 'TRAIN_IMAGES_nothing.hdf5 is not there'),
    *[({'a': {}, 'b': dict(start_from='a', **own)}, "'b' has start_from='a', which is another decoder, or") for own in (
        dict(attention=False), dict(decoder_dim=20), dict(encoder_stride=16))],
    *[({'a': {}, 'b': {key: given}}, f"'b' has {key}=.*; it must be {what}") for key, given, what in (
        ('ensemble', 5, 'a list of names'), ('ensemble', {'a': 1}, 'a list of names'),
        ('distill', True, 'a list of names'), ('start_from', ['a'], 'the name'))],
    *[({'a': {key: 7}}, f"'a' has {key}=7; runs have none of their own") for key in (
        'seed', 'output_folder', 'checkpoint')],
    ({'a': {}, 'b': dict(distill=['a'], captions='x.json')}, "'b' has captions='x.json', but with distill it learns"),
    *[({'a': {}, 'b': {key: ['a', 'a']}}, f"'b' has {key}=.'a', 'a'.*, with a run in it twice") for key in (
        'ensemble', 'distill')],
    ({'a': {}, 'A': {}}, "the runs 'a' and 'A' would share the folder"),
    ({1: {}}, 'runs must be a dict'),
    ({'lr 1e-3': {}, 'lr 1e+3': {}}, "'lr 1e-3' and 'lr 1e.3' would share the folder lr_1e_3"),
    ({}, 'runs must be a dict'), (['a'], 'runs must be a dict'), ({'a': None}, 'runs must be a dict'),
    ({'a': {}, 'c': dict(batchsize=3)}, "unknown setting 'batchsize'")])
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
                    train_seconds=10 * (5 + best))

    results = [dict(name='one', seeds=[seed(0.1, 4), seed(0.2, 5)]), dict(name='two', seeds=[seed(0.3, 9)])]
    table = comparison_table(results)
    assert table.splitlines()[2] == (
        '| one | 1,234 | 4 of 9, 5 of 9 | 0.160 ± 0.071 | 0.180 ± 0.071 | 0.650 ± 0.071 | 0.800 ± 0.000 '
        '| 0.300 ± 0.000 | 1.6 |')
    assert table.splitlines()[3] == '| two | 1,234 | 9 of 9 | 0.310 | 0.330 | 0.800 | 0.800 |  | 2.3 |'
    assert of_seeds([0.25]) == '0.250'
    rows = beam_table(results).splitlines()
    assert rows[0] == '| decoder | beam | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | CIDEr-D | ROUGE-L |'
    assert rows[2] == ('| one | 1 | 0.630 ± 0.071 | 0.400 ± 0.000 | 0.300 ± 0.000 | 0.160 ± 0.071 | 0.600 ± 0.000 '
                       '| 0.300 ± 0.000 |')
    assert rows[3].startswith('|  | 3 | 0.650 ± 0.071 |')
    assert rows[5] == '|  | 3 | 0.800 | 0.400 | 0.300 | 0.330 | 0.800 |  |'
    one = mean_scores(results[0])
    assert one['model'] == 'one' and [row['beam_size'] for row in one['scores']] == [1, 3]
    assert [row['BLEU-4'] for row in one['scores']] == pytest.approx([0.16, 0.18])
