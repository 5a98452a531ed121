"""Train several decoders on one data set with one budget, and set them side by side.

>>> results = compare({'plain LSTM': dict(attention=False), 'soft attention': dict(attention=True)},
...                   dict(data_folder='data/shapes', epochs=10), 'runs/compare')
>>> print(comparison_table(results))

A comparison that was stopped goes on where it was; a run that is there already is not trained again.
"""

import json
from pathlib import Path
from statistics import mean, stdev

from checkpoints import checkpoint_paths, load_model, read_checkpoint
from coco_metrics import coco_scores, write_coco_files
from ensembles import load_ensemble
from evaluate import evaluate
from solver import DEFAULTS, check_settings, history_path, train
from utils import atomic_path

NOT_COMPARED = ('checkpoint', 'start_from', 'output_folder', 'device', 'workers', 'print_freq', 'processes')


def compare(runs, cfg, output_folder, seeds=(0,), split='TEST', beam_sizes=(1, 3, 5)):
    """Train and test every run.

    :param runs: dict name -> settings of its own, beside ``cfg``. ``start_from`` may be the name of a run above: a
        second phase on its best weights, of the same seed. ``ensemble`` (a list of names of runs above) trains nothing:
        their checkpoints of all seeds caption together
    :param cfg: settings that all share, the budget (``epochs``) among them
    :param output_folder: a folder per run and seed is made there; ``comparison.json`` and ``.md``, and COCO's results
        and annotation files, too
    :return: list of dicts: name, seeds (list of dicts: history, and what ``evaluate.evaluate`` gives, with ``coco``:
        the field's metrics at the middle beam size)
    :raises ValueError: settings that cannot be, or a run that no run above is called
    """
    folder = Path(output_folder)
    for name in runs:
        settings(name, runs, cfg, folder, seeds[0])  # what cannot be is said before anything is trained
    results = []
    for name, own in runs.items():
        found = []
        if 'ensemble' in own:
            paths = [best_path(member, runs, cfg, folder, seed) for member in own['ensemble'] for seed in seeds]
            found.append(tested(load_ensemble(paths), [], folder / directory(name), split, beam_sizes))
        else:
            for seed in seeds:
                print(f'== {name}, seed {seed} ==', flush=True)
                wanted = settings(name, runs, cfg, folder, seed)
                history = trained(wanted)
                model = load_model(checkpoint_paths(wanted)[1])
                found.append(tested(model, history, Path(wanted['output_folder']), split, beam_sizes))
        results.append(dict(name=name, seeds=found))
    for ending, text in (('json', json.dumps(results, indent=1)), ('md', comparison_table(results))):
        with atomic_path(folder / f'comparison.{ending}') as path:
            path.write_text(text, encoding='utf-8')
    return results


def directory(name):
    """A run's name as a folder's."""
    return ''.join(c if c.isalnum() else '_' for c in name)


def settings(name, runs, cfg, folder, seed):
    """All settings of a run; those of an ensemble are those of its first member."""
    own = dict(runs[name])
    above = list(runs)[:list(runs).index(name)]
    for key in ('ensemble', 'start_from'):
        for member in [own[key]] if isinstance(own.get(key), str) else own.get(key) or []:
            if member not in above:
                raise ValueError(f'{name!r} has {key}={own[key]!r}, but no run above it is called {member!r}')
    if 'ensemble' in own:
        if not own['ensemble']:
            raise ValueError(f'{name!r} is an ensemble of nothing: give it names of runs above')
        return settings(own['ensemble'][0], runs, cfg, folder, seed)
    if own.get('start_from'):
        own['start_from'] = str(best_path(own['start_from'], runs, cfg, folder, seed))
    return check_settings({**cfg, **own, 'seed': seed, 'output_folder': str(folder / directory(name) / f'seed_{seed}')})


def best_path(name, runs, cfg, folder, seed):
    return checkpoint_paths(settings(name, runs, cfg, folder, seed))[1]


def trained(cfg):
    """Train, go on with a training that was stopped, or take the one that is there."""
    latest, _ = checkpoint_paths(cfg)
    if latest.exists():
        before = {**DEFAULTS, **read_checkpoint(latest)['settings']}
        if all(before[key] == cfg[key] for key in cfg if key not in NOT_COMPARED):
            history = json.loads(history_path(cfg).read_text())
            if len(history) >= cfg['epochs']:
                return history
            return train({**cfg, 'checkpoint': str(latest), 'start_from': None})
    return train(cfg)


def tested(model, history, folder, split, beam_sizes):
    """Test scores of a model, kept in ``folder``; those that are there are taken if they are of this model."""
    path = folder / f'{split.lower()}_{model.name}.json'
    made_of = dict(split=split, beam_sizes=list(beam_sizes), epochs=[epoch['val_greedy_bleu4'] for epoch in history],
                   data=model.settings['data_name'])
    if path.exists() and history:
        result = json.loads(path.read_text())
        if result.get('made_of') == made_of:
            return result
    result = evaluate(model, split, beam_sizes, history=history)
    captions = result['captions']
    result |= dict(made_of=made_of, history=history, coco=coco_scores(
        [c['references'] for c in captions], [c['caption'] for c in captions]))
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(result))
    write_coco_files(folder / f'{split.lower()}_{model.name}_results.json', captions,
                     folder / f'{split.lower()}_annotations.json')
    return result


def of_seeds(values):
    """Mean, and with several seeds the standard deviation: '0.204' or '0.204 ± 0.003'."""
    spread = f' ± {stdev(values):.3f}' if len(values) > 1 else ''
    return f'{mean(values):.3f}{spread}'


def comparison_table(results):
    """Markdown: a row per run. BLEU-4 for every beam size, the other metrics at the middle one; training minutes.

    :param results: of :func:`compare`
    """
    beams = [row['beam_size'] for row in results[0]['seeds'][0]['scores']]
    shown = results[0]['seeds'][0]['captions_beam_size']
    metrics = [name for name in ('METEOR', 'ROUGE-L', 'CIDEr') if name in results[0]['seeds'][0]['coco']]
    header = ['decoder', 'parameters', 'best epoch', *(f'BLEU-4, beam {beam}' for beam in beams),
              *(f'{metric}, beam {shown}' for metric in ('BLEU-1', *metrics)), 'minutes']
    rows = ['| ' + ' | '.join(header) + ' |', '|:---' + '|---:' * (len(header) - 1) + '|']
    for result in results:
        seeds = result['seeds']
        cells = [result['name'], f"{seeds[0]['parameters']:,}",
                 ', '.join(f"{seed['best_epoch']} of {seed['epochs']}" if seed['epochs'] else '' for seed in seeds)]
        for i in range(len(beams)):
            cells.append(of_seeds([seed['scores'][i]['BLEU-4'] for seed in seeds]))
        middle = beams.index(shown)
        cells.append(of_seeds([seed['scores'][middle]['BLEU-1'] for seed in seeds]))
        cells += [of_seeds([seed['coco'][metric] for seed in seeds]) for metric in metrics]
        seconds = mean(seed['train_seconds'] for seed in seeds)
        cells.append(f'{seconds / 60:.1f}' if seconds else '')
        rows.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(rows) + '\n'


def side_by_side(results, number):
    """Captions of all runs (their first seed) for one picture, a line each, and under them what people said."""
    lines = [f"{result['name']}: {' '.join(result['seeds'][0]['captions'][number]['caption'])}" for result in results]
    references = results[0]['seeds'][0]['captions'][number]['references']
    return '\n'.join([*lines, f"people: {' '.join(references[0])}"])
