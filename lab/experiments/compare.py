"""Train several decoders on one data set with one budget, and set them side by side.

>>> results = compare({'plain LSTM': dict(attention=False), 'soft attention': dict(attention=True)},
...                   dict(data_folder='data/shapes', epochs=10), 'runs/compare')
>>> print(comparison_table(results))

A comparison that was stopped goes on where it was; a run that is there already, by the same settings, of the same
captions and by the same code, is not trained again.
"""

import json
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev

import torch

from datasets import content_digest
from lab.data.vocabulary import load_word_map
from lab.decode.coco_metrics import coco_scores, write_coco_files
from lab.decode.evaluate import evaluate
from lab.experiments import distillation
from lab.more import word_vectors
from lab.more.ensembles import Ensemble, load_ensemble
from lab.more.self_critical import surrogate_loss
from lab.train.checkpoints import (
    build_decoder,
    build_encoder,
    checkpoint_paths,
    decoder_name,
    file_digest,
    load_model,
    read_checkpoint,
)
from lab.train.features import encoder_digest
from lab.train.forward import check_decoder
from lab.train.inputs import some_captions
from lab.train.resume import fingerprints
from lab.train.source import code_digest, open_todo
from solver import check_settings, train
from utils import atomic_path, best_epoch

NOT_COMPARED = ('checkpoint', 'start_from', 'captions', 'output_folder', 'device', 'workers', 'print_freq')
OF_THE_DATA, OF_THE_WEIGHTS = ('data_folder', 'data_name'), ('encoder', 'encoder_weights', 'encoder_stride')
OF_THE_ENCODER = (*OF_THE_DATA, *OF_THE_WEIGHTS, 'encoded_image_size')
METRICS = ('METEOR', 'ROUGE-L')  # of coco_metrics.py, beside BLEU and CIDEr-D


def compare(runs, cfg, output_folder, seeds=(0,), split='TEST', beam_sizes=(1, 3, 5), shown=None):
    """Train and test every run.

    :param runs: dict name -> settings of its own, beside ``cfg``. ``start_from`` may be the name of a run above: a
        second phase on its best weights, of the same seed. ``distill`` (a list of names of runs above): it learns what
        their checkpoints of all seeds say of the training pictures, see ``distillation.py``. ``ensemble`` (such a list)
        trains nothing: these checkpoints caption together
    :param cfg: settings that all share, the budget (``epochs``) among them
    :param split: 'TEST', or 'VAL' while settings are being chosen
    :param output_folder: a folder per run and seed is made there; ``comparison.json`` and ``.md`` (``val_comparison.*``
        for VAL), and COCO's results and annotation files, too
    :param shown: numbers of pictures of the split, if some are to be shown later on: that they are there is checked
    :return: list of dicts: name, seeds (list of dicts: history, begins (how many epochs of earlier phases are behind
        the weights that it starts from, and the last of these or None; not of ensembles), and what
        ``evaluate.evaluate`` gives, the other metrics among the scores)
    :raises ValueError: settings that cannot be, or a run that no run above is called; before anything is trained
    :raises NotImplementedError: a run needs a TODO that is still open; likewise
    """
    check_arguments(runs, cfg, output_folder, seeds, split, beam_sizes)
    folder, device = Path(output_folder), cfg.get('device')
    encoders = check_runs(runs, cfg, folder, seeds, split)
    check_shown(shown, runs, cfg, folder, split)
    results, ends = [], {}
    for name, own in runs.items():
        found = []
        members = own.get('ensemble') or own.get('distill') or []
        paths = [best_path(member, runs, cfg, folder, seed) for member in members for seed in seeds]
        if 'ensemble' in own:
            first = settings(members[0], runs, cfg, folder, seeds[0])
            found.append(tested('Ensemble', paths, [], folder / directory(name), first, split, beam_sizes))
        else:
            if 'distill' in own:
                taught(paths, said_by(folder, members), device)
            for seed in seeds:
                print(f'== {name}, seed {seed} ==', flush=True)
                wanted = settings(name, runs, cfg, folder, seed)
                history = trained(wanted, encoders[of_the_encoder(wanted)])
                best = checkpoint_paths(wanted)[1]
                begins = ends.get((own.get('start_from'), seed), (0, None))
                ends[name, seed] = begins[0] + best_epoch(history)['epoch'], best_epoch(history)
                found.append(dict(begins=begins) | tested(decoder_name(wanted), [best], history, best.parent, wanted,
                                                          split, beam_sizes))
        results.append(dict(name=name, seeds=found))
    tables = f'{comparison_table(results)}\n{beam_table(results)}'
    for ending, text in (('json', json.dumps(results, indent=1)), ('md', tables)):
        with atomic_path(folder / of_split(f'comparison.{ending}', split)) as path:
            path.write_text(text, encoding='utf-8')
    return results


def of_split(name, split):
    """A file's name, 'val_' before it if it is of the validation split."""
    return name if split == 'TEST' else f'{split.lower()}_{name}'


def directory(name):
    """A run's name as a folder's."""
    return ''.join(c if c.isalnum() else '_' for c in name)


def check_arguments(runs, cfg, output_folder, seeds, split, beam_sizes):
    """:raises ValueError: see :func:`compare`"""
    if split not in ('TEST', 'VAL'):
        raise ValueError(f"split is {split!r}; it must be 'TEST', or 'VAL' while you choose settings")
    if not isinstance(cfg, dict):
        raise ValueError(f'cfg is {cfg!r}; it must be a dict of the settings that all runs share')
    if not isinstance(output_folder, (str, Path)) or Path(output_folder).exists() and not Path(output_folder).is_dir():
        raise ValueError(f'output_folder is {str(output_folder)!r}; it must be a folder')
    if not isinstance(runs, dict) or not runs or not all(
            isinstance(name, str) and isinstance(own, dict) for name, own in runs.items()):
        raise ValueError('runs must be a dict: the name of each run, and a dict of its own settings')
    for what, numbers, least in (('seeds', seeds, 0), ('beam_sizes', beam_sizes, 1)):
        if not isinstance(numbers, (list, tuple)) or not numbers or len(set(map(str, numbers))) < len(numbers) or any(
                type(number) is not int or not least <= number < 2 ** 32 for number in numbers):
            raise ValueError(f'{what} is {numbers!r}; it must be a list of different whole numbers, from {least} on, '
                             'below 2 ** 32')


def check_shown(shown, runs, cfg, folder, split):
    """:raises ValueError: see :func:`compare`"""
    if shown is None:
        return
    cfg = settings(next(iter(runs)), runs, cfg, folder, 0)  # the first is trained
    there = len(some_captions(cfg['data_folder'], cfg['data_name'], split).names)
    if not isinstance(shown, (list, tuple, range)) or not shown or any(
            type(number) is not int or not 0 <= number < there for number in shown):
        raise ValueError(f'shown is {shown!r}; it must be a list of whole numbers from 0 to {there - 1}: the split has '
                         f'{there} pictures')


def check_runs(runs, cfg, folder, seeds, split):
    """
    :return: what :func:`layers` found of the encoders
    :raises ValueError, NotImplementedError: see :func:`compare`
    """
    folders, built, encoders, data = {}, {}, {}, set()
    if cfg.get('checkpoint'):
        raise ValueError(f"cfg has checkpoint={cfg['checkpoint']!r}; a comparison goes on by itself: leave it out")
    for name, own in runs.items():
        other = folders.setdefault(directory(name).lower(), name)  # some file systems see no capitals
        if other != name:
            raise ValueError(f'the runs {other!r} and {name!r} would share the folder {directory(name)}: rename one')
        for key in ('seed', 'output_folder', 'checkpoint'):
            if key in own:
                raise ValueError(f'{name!r} has {key}={own[key]!r}; runs have none of their own: the comparison has '
                                 'seeds and an output_folder, with a folder per run and seed, and goes on by itself')
        if own.get('distill') and own.get('captions'):
            raise ValueError(f"{name!r} has captions={own['captions']!r}, but with distill it learns what other runs "
                             'say: leave one of the two out')
        above = [n for n in list(runs)[:list(runs).index(name)] if 'ensemble' not in runs[n]]
        for key in ('ensemble', 'distill', 'start_from'):
            given = own.get(key)
            if given and not isinstance(given, str if key == 'start_from' else (str, list, tuple)):
                raise ValueError(f"{name!r} has {key}={given!r}; it must be "
                                 f"{'the name' if key == 'start_from' else 'a list of names'} of runs above")
            for member in [given] if isinstance(given, str) else given or []:
                if member not in above:
                    raise ValueError(f'{name!r} has {key}={own[key]!r}, but no trained run above it is called '
                                     f'{member!r}')
        if 'ensemble' not in own:
            wanted = settings(name, runs, cfg, folder, seeds[0])
            if (which := tuple(wanted[part] for part in OF_THE_DATA)) not in data:
                for part in ('TRAIN', 'VAL', split):
                    some_captions(*which, part)
                data.add(which)
            built[name] = layers(name, wanted, 'distill' in own, encoders)
            if own.get('start_from'):
                first = settings(own['start_from'], runs, cfg, folder, seeds[0])
                if built[name] != built[own['start_from']] or any(
                        wanted[part] != first[part] for part in OF_THE_WEIGHTS):
                    raise ValueError(f"{name!r} has start_from={own['start_from']!r}, which is another decoder, or has "
                                     'another encoder, other sizes or another vocabulary')
                if wanted['word_vectors'] and not first['word_vectors']:
                    raise ValueError(f"{name!r} has word_vectors, but {own['start_from']!r}, from which it starts, has "
                                     'none: give them to that run, or to neither')
        key = 'ensemble' if 'ensemble' in own else 'distill'
        if key not in own:
            continue
        if todo := open_todo(Ensemble.step):  # teachers are one, too
            raise NotImplementedError(todo)
        alone = ', and nothing else' * (key == 'ensemble')  # it trains nothing
        if not own[key] or isinstance(own[key], str) or alone and len(own) > 1:
            raise ValueError(f'{name!r} must have a list of names of runs above as {key!r}{alone}')
        if len(set(own[key])) < len(own[key]):
            raise ValueError(f'{name!r} has {key}={own[key]!r}, with a run in it twice')
        members = [settings(member, runs, cfg, folder, seeds[0]) for member in own[key]]
        for member, wanted in zip(own[key], members, strict=True):
            if any(wanted[part] != members[0][part] for part in OF_THE_ENCODER):
                raise ValueError(f'{name!r}: {member!r} and {own[key][0]!r} have not the same data and encoder, '
                                 'so they cannot caption together')
        if key == 'distill' and any(settings(name, runs, cfg, folder, seeds[0])[part] != members[0][part]
                                    for part in OF_THE_DATA):
            raise ValueError(f'{name!r} has other data than {own[key][0]!r}, so it cannot learn what that says')
    return encoders


def of_the_encoder(cfg):
    return tuple(cfg[part] for part in OF_THE_ENCODER)


def layers(name, cfg, taught, encoders):
    """Build the decoder of a run, to see that it can be.

    :param cfg: all its settings
    :param taught: whether its captions are those of other runs, still to be made
    :param encoders: channels and fingerprints of encoders that were built before; another is added
    :return: decoder's name, shapes of its weights, vocabulary
    :raises ValueError: what training would refuse, with the run's name before it
    :raises NotImplementedError: it needs a TODO that is still open
    """
    try:
        for key in ('word_vectors', 'captions'):
            if cfg[key] and not Path(cfg[key]).exists() and not (taught and key == 'captions'):
                raise ValueError(f'setting {key!r} is {cfg[key]!r}, and there is no such file')
        word_map = load_word_map(cfg['data_folder'], cfg['data_name'])
        if (which := of_the_encoder(cfg)) not in encoders:
            encoder = build_encoder(cfg)
            encoders[which] = encoder.encoder_dim, encoder_digest(encoder)
        channels, _ = encoders[which]
        decoder = build_decoder(cfg, len(word_map), channels)
        check_decoder(decoder, cfg)
    except ValueError as error:
        raise ValueError(f'{name!r}: {error}') from None
    try_out(decoder, cfg, channels)
    needed = [*[surrogate_loss] * bool(cfg['self_critical']),
              *[word_vectors.load] * bool(cfg['word_vectors'] and not cfg['start_from'])]
    if todo := open_todo(*needed):
        raise NotImplementedError(todo)
    return decoder_name(cfg), {key: value.shape for key, value in decoder.state_dict().items()}, word_map


def try_out(decoder, cfg, channels):
    """Let a decoder read two captions of pictures without anything in them.

    :raises NotImplementedError: a TODO that it needs is still open; whatever else stops it is for its training to say
    """
    cells, words = torch.zeros(2, 2, 2, channels), torch.zeros(2, 3, dtype=torch.long)
    own_words = {} if cfg['teacher_forcing'] == 1 else dict(teacher_forcing=0.0)
    for call in (lambda: decoder(cells, words, torch.full((2, 1), 3), **own_words),
                 lambda: decoder.step(words[:, 0], *decoder.start(cells))):
        try:
            call()
        except Exception as error:
            if isinstance(error, NotImplementedError) and 'is still to do' in str(error):
                raise


def settings(name, runs, cfg, folder, seed):
    """All settings of a run that is trained."""
    own = dict(runs[name])
    teachers = own.pop('distill', None)
    if teachers:
        own['captions'] = str(said_by(folder, teachers))
    if own.get('start_from'):
        own['start_from'] = str(best_path(own['start_from'], runs, cfg, folder, seed))
    try:
        return check_settings(
            {**cfg, **own, 'seed': seed, 'output_folder': str(folder / directory(name) / f'seed_{seed}')})
    except ValueError as error:
        raise ValueError(f'{name!r}: {error}') from None


def best_path(name, runs, cfg, folder, seed):
    return checkpoint_paths(settings(name, runs, cfg, folder, seed))[1]


def said_by(folder, names):
    """The file of what decoders said of the training pictures; runs with the same teachers share it."""
    return folder / f'said_by_{"_and_".join(map(directory, names))}.json'


def taught(teachers, path, device):
    """Let teachers caption the training pictures, unless these very ones have."""
    with suppress(OSError, ValueError, AttributeError):  # not there, or not whole
        if json.loads(path.read_text()).items() >= distillation.made_of(teachers).items():
            return
    print(f'== {path.stem.replace("_", " ")} ==', flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    distillation.distill(path, teachers, device=device)


def trained(cfg, encoder):
    """Train, go on with a training that was stopped, or take the one that is there.

    :param encoder: channels and fingerprint
    """
    latest, best = checkpoint_paths(cfg)
    if latest.exists() and best.exists():
        state = read_checkpoint(latest)
        changed = other_than(state, cfg, encoder)
        if not changed:
            if len(state['history']) >= cfg['epochs']:
                print(f'{best} is there, by these settings, of these captions and by this code: it is taken as it is.',
                      flush=True)
                return state['history']
            return train({**cfg, 'checkpoint': str(latest), 'start_from': None})
        print(f"{best.parent} holds a training that differs in {', '.join(changed)}: it is trained anew.", flush=True)
    return train(cfg)


def other_than(state, cfg, encoder):
    """What of a training's checkpoint is not as it would be now: names of settings, files and the like."""
    before, now, was = dict(state['settings']), fingerprints(cfg), state['fingerprints']
    frozen = state['encoder'] is None  # else its weights are in the checkpoint
    for settings in (before, cfg := dict(cfg)):  # the same folder by another name
        settings['data_folder'] = str(Path(settings['data_folder']).resolve())
    return [*[key for key in cfg if key not in NOT_COMPARED and before[key] != cfg[key]],
            *[key for key in {**now, **was} if now.get(key) != was.get(key)],
            *['encoder'] * (frozen and state['encoder_digest'] != encoder[1])]


def tested(name, paths, history, folder, cfg, split, beam_sizes):
    """Test scores of a checkpoint, or of several together, kept in ``folder``.

    Those that are there are taken if they are of these very files.

    :param name: of the decoder; 'Ensemble' loads ``paths`` as one
    :param cfg: settings of one of them, for its data and device
    """
    wanted = dict(split=split, beam_sizes=list(beam_sizes),
                  code=code_digest() if name == 'Ensemble' else None,  # of others it is in these:
                  data=content_digest(cfg['data_folder'], cfg['data_name'], split),
                  checkpoints=[file_digest(path) for path in paths])
    path, device = folder / f'{split.lower()}_{name}.json', cfg['device']
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError):  # not there, or not whole
        result = None
    if not isinstance(result, dict) or result.get('made_of') != wanted:
        path.unlink(missing_ok=True)  # while those beside it are of another
        model = load_ensemble(paths, device) if name == 'Ensemble' else load_model(paths[0], device)
        result = evaluate(model, split, beam_sizes, history=history) | dict(made_of=wanted, history=history)
    elif set(METRICS) <= result['scores'][0].keys():
        return result
    captions = result['captions']
    for row, said in zip(result['scores'], result['said'], strict=True):
        found = coco_scores([c['references'] for c in captions], said,
                            say=print if row is result['scores'][0] else lambda _: None)  # what is missing is said once
        row.update({metric: found[metric] for metric in METRICS if metric in found})
    write_coco_files(folder / f'{split.lower()}_{name}_results.json', captions,
                     folder / f'{split.lower()}_annotations.json')
    with atomic_path(path) as temporary:  # last: where it is, they are
        temporary.write_text(json.dumps(result))
    return result


def of_seeds(values):
    """Mean, and with several seeds the standard deviation: '0.204' or '0.204 ± 0.003'."""
    spread = f' ± {stdev(values):.3f}' if len(values) > 1 else ''
    return f'{mean(values):.3f}{spread}'


def cell_of(name):
    """A name within Markdown's table."""
    return name.replace('|', '\\|')


def metrics_of(results, bleus):
    """Names of the metrics to show: ``bleus``, CIDEr-D, and the others of the field that were had at least once."""
    rows = [row for result in results for seed in result['seeds'] for row in seed['scores']]
    return [*bleus, 'CIDEr-D', *(metric for metric in METRICS if any(metric in row for row in rows))]


def cells_of(seeds, beam, metrics):
    """:return: a cell per metric at the ``beam``-th beam size; what could not be had for a seed leaves it empty"""
    rows = [seed['scores'][beam] for seed in seeds]
    return [of_seeds([row[metric] for row in rows]) if all(metric in row for row in rows) else '' for metric in metrics]


def comparison_table(results):
    """Markdown: a row per run. BLEU-4 for every beam size, the other metrics at the middle one; training minutes.

    :param results: of :func:`compare`
    """
    beams = [row['beam_size'] for row in results[0]['seeds'][0]['scores']]
    shown = results[0]['seeds'][0]['captions_beam_size']
    metrics = metrics_of(results, ('BLEU-1',))
    header = ['decoder', 'parameters', 'best epoch', *(f'BLEU-4, beam {beam}' for beam in beams),
              *(f'{metric}, beam {shown}' for metric in metrics), 'minutes']
    rows = ['| ' + ' | '.join(header) + ' |', '|:---' + '|---:' * (len(header) - 1) + '|']
    for result in results:
        seeds = result['seeds']
        cells = [cell_of(result['name']), f"{seeds[0]['parameters']:,}",
                 ', '.join(f"{seed['best_epoch']} of {seed['epochs']}" if seed['epochs'] else '' for seed in seeds)]
        for i in range(len(beams)):
            cells.append(of_seeds([seed['scores'][i]['BLEU-4'] for seed in seeds]))
        cells += cells_of(seeds, beams.index(shown), metrics)
        seconds = mean(seed['train_seconds'] for seed in seeds)
        cells.append(f'{seconds / 60:.1f}' if seconds else '')
        rows.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(rows) + '\n'


def mean_scores(result):
    """A run's scores for every beam size as of ``evaluate.evaluate``, the mean over its seeds; ``model``: its name."""
    per_seed = [seed['scores'] for seed in result['seeds']]
    scores = [{key: mean(row[key] for row in rows) for key in rows[0] if all(key in row for row in rows)}
              for rows in zip(*per_seed, strict=True)]
    return dict(model=result['name'], scores=[{**row, 'beam_size': own['beam_size']} for row, own in
                                              zip(scores, per_seed[0], strict=True)])


def beam_table(results):
    """Markdown: a row per run and beam size, with BLEU-1 to 4 and what there is of the other metrics.

    :param results: of :func:`compare`
    """
    metrics = metrics_of(results, ('BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4'))
    rows = ['| decoder | beam | ' + ' | '.join(metrics) + ' |', '|:---' + '|---:' * (1 + len(metrics)) + '|']
    for result in results:
        for i, row in enumerate(result['seeds'][0]['scores']):
            cells = cells_of(result['seeds'], i, metrics)
            rows.append(f"| {'' if i else cell_of(result['name'])} | {row['beam_size']} | {' | '.join(cells)} |")
    return '\n'.join(rows) + '\n'


def side_by_side(results, number):
    """Captions of all runs (their first seed) for one picture, a line each, and under them what people said."""
    lines = [f"{result['name']}: {' '.join(result['seeds'][0]['captions'][number]['caption']) or '(nothing)'}"
             for result in results]
    references = results[0]['seeds'][0]['captions'][number]['references']
    return '\n'.join([*lines, f"people: {' '.join(references[0])}"])
