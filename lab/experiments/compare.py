"""Train several decoders on one data set with one budget, and compare their scores.

>>> results = compare({'plain LSTM': dict(attention=False), 'soft attention': dict(attention=True)},
...                   dict(data_folder='data/shapes', epochs=10), 'runs/compare')
>>> print(comparison_table(results))

A comparison that was stopped is resumed. A finished run is trained again only if its settings, data or code changed.
"""

from functools import cache
from pathlib import Path
from statistics import mean, stdev

import torch

from datasets import CaptionDataset, content_digest
from lab.data.vocabulary import languages_of, load_word_map
from lab.decode.coco_metrics import coco_scores
from lab.decode.evaluate import caption_image, evaluate, save_result
from lab.decode.metrics import METRICS, score_names
from lab.decode.monitor import metric_of
from lab.more import self_critical
from lab.more.ensembles import ensemble_of, load_ensemble
from lab.train.batches import Batch
from lab.train.checkpoints import checkpoint_paths, file_digest, load_model, read_checkpoint, restore_model
from lab.train.features import encoder_digest
from lab.train.model import build_model, decoder_name
from lab.train.resume import fingerprints
from lab.train.source import code_digest, function_digest
from solver import check_settings, train
from utils import atomic_path, best_epoch, markdown_table, read_json, sentence, write_json

# Fingerprints stand for the data and the files. The folder and the device change no result.
NOT_COMPARED = ('checkpoint', 'start_from', 'data_folder', 'output_folder', 'device')
BLANK = torch.zeros(2, 3, 256, 256, dtype=torch.uint8)  # pictures, to try a run with
AGAIN = 'delete it and run the comparison again'


def compare(runs, cfg, output_folder, seeds=(0,), split='TEST', beam_sizes=(1, 3, 5)):
    """Train and test every run.

    Each run and seed has its own folder in ``output_folder``. The results are in ``comparison.json``, the table in
    ``comparison.md`` (``val_comparison.*`` for the validation split).

    :param runs: dict name -> the run's own settings, beside ``cfg``. Two settings name runs further up:
        ``start_from``: a second phase from the best weights of that run, of the same seed.
        ``ensemble`` (list of names): no training; the checkpoints of these runs, of all seeds, caption together
    :param cfg: settings that all runs share, including the budget (``epochs``)
    :param split: 'TEST', or 'VAL' while you choose settings
    :return: list of dicts with name, run and seeds; of several languages one for each, named 'run, zh'. A seed is a
        dict of ``evaluate.evaluate`` with METEOR and ROUGE-L among its scores, and history, provenance, and begins: the
        number of epochs that earlier phases trained its initial weights, and the last of these epochs
    :raises ValueError: wrong settings or an unknown run, before any training
    :raises NotImplementedError: a TODO of a decoder, an ensemble or a loss is still open, before any training
    """
    folder, beam_sizes = Path(output_folder).expanduser(), list(beam_sizes)
    settings = all_settings(runs, cfg, folder, seeds, split)
    tested, phases = {}, {}  # of the first a list per run and language
    for name, own in runs.items():
        if members := own.get('ensemble'):
            checkpoints = [checkpoint_paths(settings[member, seed])[1] for member in members for seed in seeds]
            found = evaluate_or_load('Ensemble', checkpoints, [], folder / folder_name(name),
                                     settings[members[0], seeds[0]], split, beam_sizes)
            tested |= {(name, language): [result] for language, result in found.items()}
            continue
        for seed in seeds:
            print(f'== {name}, seed {seed} ==', flush=True)
            run_cfg = settings[name, seed]
            history = train_or_load(run_cfg)
            best = checkpoint_paths(run_cfg)[1]
            begins = phases.get((own.get('start_from'), seed), (0, None))
            phases[name, seed] = begins[0] + best_epoch(history)['epoch'], best_epoch(history)
            found = evaluate_or_load(decoder_name(run_cfg), [best], history, best.parent, run_cfg, split, beam_sizes)
            for language, result in found.items():
                tested.setdefault((name, language), []).append(dict(begins=begins) | result)
    results = [dict(name=f'{name}, {language}' if language else name, run=name, seeds=found)
               for (name, language), found in tested.items()]
    write_json(folder / with_split('comparison.json', split), results)
    with atomic_path(folder / with_split('comparison.md', split)) as path:
        path.write_text(comparison_table(results), encoding='utf-8')
    return results


def with_split(name, split):
    """A file name, with 'val_' before it for the validation split."""
    return name if split == 'TEST' else f'{split.lower()}_{name}'


def folder_name(name):
    """A run's name with only letters, digits and underscores."""
    return ''.join(c if c.isalnum() else '_' for c in name)


def all_settings(runs, cfg, folder, seeds, split):
    """Check every run before the first is trained: its settings, the runs that it names, its decoder and open TODOs.

    :return: dict (name, seed) -> all settings of a training; an ensemble has none
    :raises ValueError, NotImplementedError: see :func:`compare`
    """
    settings, folders = {}, {}
    for name, own in runs.items():
        try:
            other = folders.setdefault(folder_name(name), name)
            if other != name:
                raise ValueError(f'the run {other!r} has the same folder, {folder_name(name)}: rename one')
            for key in ('seed', 'output_folder', 'checkpoint'):
                if key in own:
                    raise ValueError(f'{key} cannot be set for a single run: the comparison sets it')
            for other in (*own.get('ensemble', ()), own.get('start_from')):
                if other and (other, seeds[0]) not in settings:
                    raise ValueError(f'it names {other!r}, but no trained run above it is called so')
            if own.get('ensemble'):
                models = [untrained(settings[member, seeds[0]]) for member in own['ensemble']]
                caption_image(ensemble_of(own['ensemble'], models), BLANK[0], beam_size=1, max_len=2)
                continue
            for seed in seeds:
                of_seed = {'checkpoint': None, 'seed': seed,
                           'output_folder': str(folder / folder_name(name) / f'seed_{seed}')}
                if start := own.get('start_from'):
                    of_seed['start_from'] = str(checkpoint_paths(settings[start, seed])[1])
                settings[name, seed] = check_settings({**cfg, **own, **of_seed})
            try_model(settings[name, seeds[0]], settings.get((own.get('start_from'), seeds[0])), split)
        except Exception as error:
            error.add_note(f'in the run {name!r}')
            raise
    return settings


def untrained(cfg):
    """The model of a run before its training."""
    return build_model(cfg, load_word_map(cfg['data_folder'], cfg['data_name']))


def try_model(cfg, before, split):
    """Build a run's model, and let it read and caption blank pictures: its errors and open TODOs come up now.

    :param before: settings of the run that it starts from, or None
    """
    CaptionDataset(cfg['data_folder'], cfg['data_name'], split)
    metric_of(cfg['monitor'], CaptionDataset(cfg['data_folder'], cfg['data_name'], 'VAL').references_in)
    model = untrained(cfg)
    if before:
        first = untrained(before)
        encoder = first.encoder.stages.state_dict() if before['fine_tune_encoder'] else None
        restore_model(model, dict(
            settings=before, word_map=first.word_map, decoder=first.decoder.state_dict(), encoder=encoder,
            encoder_digest=encoder_digest(first.encoder)), 'the checkpoint of start_from')
    if cfg['word_vectors']:
        Path(cfg['word_vectors']).stat()  # is it there?
    if cfg['self_critical']:  # its TODO
        self_critical.surrogate_loss(torch.zeros(1, 2), torch.zeros(1, 2), None, torch.ones(1))
    numbers = torch.arange(2)
    model.decoder.train()
    with torch.no_grad():
        model(Batch(BLANK, numbers, torch.zeros(2, 3, dtype=torch.long), torch.full((2,), 3), numbers),
              teacher_forcing=1.0 if cfg['teacher_forcing'] == 1 else 0.0)
    caption_image(model.eval(), BLANK[0], beam_size=1, max_len=2)


def train_or_load(cfg):
    """Train, resume a training that was stopped, or take one that is finished.

    :return: its history
    """
    latest, best = checkpoint_paths(cfg)
    if not (latest.exists() and best.exists()):
        return train(cfg)
    state = read_checkpoint(latest)
    metric = metric_of(cfg['monitor'], CaptionDataset(cfg['data_folder'], cfg['data_name'], 'VAL').references_in)
    before, now = {**state['settings'], **state['fingerprints']}, {**cfg, **fingerprints(cfg, metric=metric)}
    changed = [key for key in {**now, **before} if key not in NOT_COMPARED and now.get(key) != before.get(key)]
    if changed:
        print(f"{best.parent} has a training with other {', '.join(changed)}: it is trained again.", flush=True)
        return train(cfg)
    if len(state['history']) < cfg['epochs']:
        return train({**cfg, 'checkpoint': str(latest), 'start_from': None})
    print(f'{best} has the same settings, captions and code: it is not trained again.', flush=True)
    return state['history']


def evaluate_or_load(name, checkpoints, history, folder, cfg, split, beam_sizes):
    """Scores of a checkpoint, or of several as an ensemble; they are kept in ``folder``.

    :param name: of the decoder, or 'Ensemble'
    :param cfg: settings of one of the checkpoints, for its data and device
    :return: dict language -> result; the language is None where there is only one
    """
    provenance = dict(split=split, beam_sizes=beam_sizes, code=code_digest(cfg, tests=True),
                      data=content_digest(cfg['data_folder'], cfg['data_name'], split),
                      checkpoints=[file_digest(path) for path in checkpoints],
                      metrics=[function_digest(metric) for metric in METRICS])
    paths = {}
    for language in languages_of(load_word_map(cfg['data_folder'], cfg['data_name'])):
        ending = f'_{language}' if language else ''
        paths[language] = folder / f'{split.lower()}_{name}{ending}.json'
    results = {language: read_json(path, AGAIN) for language, path in paths.items() if path.exists()}
    if results.keys() == paths.keys() and all(result.get('provenance') == provenance for result in results.values()):
        return results
    device = cfg['device']
    model = load_ensemble(checkpoints, device) if name == 'Ensemble' else load_model(checkpoints[0], device)
    model.settings.update(data_folder=cfg['data_folder'], data_name=cfg['data_name'])  # they may have moved
    for own in model.by_language():
        path = paths[own.language]
        result = evaluate(own, split, beam_sizes, history)
        references = [c['references'] for c in result['captions']]
        print_once = cache(print)  # what is missing is missing for all beam sizes
        for row, captions in zip(result['scores'], result['captions_per_beam'], strict=True):
            row.update(coco_scores(references, captions, log=print_once))
        save_result(result | dict(provenance=provenance, history=history), path)
    return {language: read_json(path, AGAIN) for language, path in paths.items()}


def score_cells(seeds, beam_size, metrics):
    """A cell per metric: '0.204', with several seeds '0.204 ± 0.003', or '' where this beam size was not tested."""
    rows = [row for seed in seeds for row in seed['scores'] if row['beam_size'] == beam_size]
    cells = []
    for metric in metrics:
        values = [row[metric] for row in rows]
        spread = f' ± {stdev(values):.3f}' if len(values) > 1 else ''
        cells.append(f'{mean(values):.3f}{spread}' if values else '')
    return cells


def all_scores(results):
    """Names of the scores that all results have."""
    return score_names([row for result in results for seed in result['seeds'] for row in seed['scores']])


def comparison_table(results):
    """Markdown: a row per run. BLEU-4 for every beam size, the other metrics for the middle one, training minutes.

    :param results: of :func:`compare`
    """
    metrics = [name for name in all_scores(results) if name not in ('BLEU-2', 'BLEU-3', 'BLEU-4')]
    epochs = [', '.join(f"{seed['best_epoch']} of {seed['epochs']}" for seed in result['seeds'] if seed['epochs'])
              for result in results]
    return score_table(results, 'decoder', metrics, 'best epoch', epochs)


def score_table(results, first, metrics, extra, cells):
    """Markdown: a row per run with its parameters, one more cell, BLEU-4 for every beam size, other metrics for the
    middle one, and training minutes.

    :param first: heading of the runs' names
    :param metrics: names of the other metrics
    :param extra, cells: heading of the column of these cells
    """
    beams = [row['beam_size'] for row in results[0]['seeds'][0]['scores']]
    middle = beams[len(beams) // 2]
    rows = []
    for result, cell in zip(results, cells, strict=True):
        seeds = result['seeds']
        minutes = mean(seed['train_seconds'] for seed in seeds) / 60
        rows.append([result['name'], f"{seeds[0]['parameters']:,}", cell,
                     *(bleu4 for beam in beams for bleu4 in score_cells(seeds, beam, ['BLEU-4'])),
                     *score_cells(seeds, middle, metrics), f'{minutes:.1f}' if minutes else ''])
    return markdown_table([first, 'parameters', extra, *(f'BLEU-4, beam {beam}' for beam in beams),
                           *(f'{metric}, beam {middle}' for metric in metrics), 'minutes'], rows)


def mean_scores(result):
    """A run's scores for every beam size, averaged over its seeds, as ``figures.plot_bleu`` takes them."""
    return dict(model=result['name'], reference_words=result['seeds'][0]['reference_words'], scores=[
        {key: mean(row[key] for row in rows) for key in rows[0] if all(key in row for row in rows)}
        for rows in zip(*(seed['scores'] for seed in result['seeds']), strict=True)])


def side_by_side(results, number):
    """Captions of one picture, a line per run (its first seed), and in the end a reference in each language."""
    captions = {result['name']: result['seeds'][0]['captions'][number] for result in results}
    lines = [f"{name}: {sentence(caption['caption']) or '(nothing)'}" for name, caption in captions.items()]
    people = dict.fromkeys(f"people: {sentence(caption['references'][0])}" for caption in captions.values())
    return '\n'.join([*lines, *people])
