"""Learning curves, and scores against beam size."""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from lab.decode.cider import cider_d
from lab.decode.metrics import score_names
from lab.figures.style import DECODER_NAMES, WIDTH, drawable, label, line_styles
from utils import best_epoch, markdown_table, read_json


def read_histories(folder):
    """The histories that trainings saved in a run folder.

    :return: dict decoder name -> history of ``solver.train``, the decoders of ``DECODER_NAMES`` first
    :raises ValueError: a file that is cut
    """
    histories = {path.stem.removeprefix('history_'): read_json(path, 'delete it, or train this decoder again')
                 for path in sorted(Path(folder).expanduser().glob('history_*.json'))}
    known = [name for name in DECODER_NAMES if name in histories]
    return {name: histories[name] for name in [*known, *histories]}


def plot_history(histories, begins=None, training=True):
    """Learning curves of one run or of many: loss, top-5 accuracy and BLEU-4 per epoch, or in place of BLEU-4 another
    score that decides in all of them (setting ``monitor``). A star marks the best epoch.

    :param histories: dict name -> history of ``solver.train``, or list of histories, one per seed: the first is drawn
        strongest
    :param begins: dict name -> list of (epochs, last), one per seed, of the phases before: how many epochs they have,
        and the last of these (None: there was none). A dotted line leads from it to the first epoch of this history
    :param training: False: the validation split alone, and the cross-entropy in place of the loss, which has a penalty
        in some runs
    """
    runs = {name: seeds if isinstance(seeds[0], list) else [seeds] for name, seeds in histories.items()}
    loss = ('val_loss', 'loss', 'train_loss', '--') if training else ('val_cross_entropy', 'cross-entropy', None, None)
    panels = [loss, ('val_top5', 'top-5 accuracy, %', 'train_top5', '--'),
              ('val_greedy_bleu4', 'BLEU-4 (solid line: greedy)' if training else 'greedy BLEU-4', 'val_bleu4', ':')]
    monitors = {history[-1].get('monitor') or 'greedy_bleu4' for seeds in runs.values() for history in seeds}
    starred = f'val_{monitors.pop()}' if len(monitors) == 1 else 'val_greedy_bleu4'
    if starred not in [key for key, *_ in panels]:
        panels[-1] = (starred, starred.removeprefix('val_'), None, None)
    handles = {}
    figure, axes_of = plt.subplots(1, 3, figsize=(WIDTH, 2.8 + 0.06 * len(runs)))
    for axes, (key, title, other, dashes) in zip(axes_of, panels, strict=True):
        for name, style in line_styles(runs).items():
            for seed, history in enumerate(runs[name]):
                before, last = begins[name][seed] if begins else (0, None)
                epochs = [before + entry['epoch'] for entry in history]
                values = [entry[key] for entry in history]
                line = style | dict(alpha=0.4 if seed else 1)
                thin = line | dict(marker='' if len(history) > 1 else '.', linewidth=1)
                drawn, = axes.plot(epochs, values, **line)
                handles.setdefault(name, drawn)
                if last and key in last:
                    axes.plot([before, epochs[0]], [last[key], values[0]], ':', **thin)
                # self-critical training has minus CIDEr-D for its loss, and no accuracy
                if training and other and (history[0]['train_top5'] is not None or other == 'val_bleu4'):
                    axes.plot(epochs, [entry[other] for entry in history], dashes, **thin)
                if training and key == starred:
                    best = best_epoch(history)
                    axes.plot(before + best['epoch'], best[key], **line | dict(marker='*', markersize=11))
        axes.set(title=title if training else f'validation {title}', xlabel='epoch')
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    lines, names = [*handles.values()], drawable(label(name) for name in handles)
    if training:
        kinds = {'training': '--', 'validation': '-', 'best': '*'}
        if panels[-1][2]:
            kinds['teacher forcing'] = ':'
        lines += [axes.plot([], [], kind, color='0.3', markersize=8)[0] for kind in kinds.values()]
        names += kinds
    columns = 100 // (max(map(len, names)) + 8)
    figure.legend(lines, names, loc='outside lower center', ncols=max(columns, 1))
    return figure


def plot_bleu(results):
    """All scores and the length of the captions against beam size, a line per decoder.

    :param results: list of dicts of ``evaluate.evaluate``
    """
    names = drawable([label(result['model']) for result in results], 28)
    scores = score_names([row for result in results for row in result['scores']])
    rows = math.ceil((len(scores) + 2) / 4)
    columns = 4
    height = rows * max(2.2, 0.16 * len('\n'.join(names).splitlines()))  # the legend has the height of a row
    figure, axes_of = plt.subplots(rows, columns, figsize=(WIDTH, height))
    *panels, legend = list(axes_of.flat)[:len(scores) + 2]
    for unused in list(axes_of.flat)[len(scores) + 1:]:
        unused.axis('off')
    styles = line_styles([result['model'] for result in results])
    tested = sorted({row['beam_size'] for result in results for row in result['scores']})
    for axes, key in zip(panels, [*scores, 'words'], strict=True):
        for result in results:
            beams = [row['beam_size'] for row in result['scores']]
            axes.plot(beams, [row[key] for row in result['scores']], **styles[result['model']])
        if key == 'words':
            for words in {result['reference_words'] for result in results}:  # one for each language
                axes.axhline(words, color='0.4', linestyle=':')
        axes.set(title='words per caption' if key == 'words' else key, xlabel='beam size', xticks=tested)
        axes.margins(0.1)
        # from 0, and all BLEU alike: a zoom makes a difference of 0.01 look like a victory
        axes.set_ylim(0, 1 if key.startswith('BLEU-') else 1.1 * axes.get_ylim()[1])
    legend.legend(axes.lines[:len(names) + 1], [*names, 'references'], loc='center').set_in_layout(False)
    return figure


def plot_diversity(results, others):
    """How good and how different captions are, for several searches: CIDEr-D against the number of different captions,
    and against words per caption. A column per decoder.

    :param results: list of dicts of ``evaluate.evaluate``
    :param others: dict decoder -> dict search -> list of captions, each a list of words
    """
    figure, panels = plt.subplots(2, len(results), figsize=(WIDTH, 4.6), squeeze=False, sharey=True, sharex='row')
    for result, above, below in zip(results, *panels, strict=True):
        references = [c['references'] for c in result['captions']]
        searches = {f"beam {row['beam_size']}": captions
                    for row, captions in zip(result['scores'], result['captions_per_beam'], strict=True)}
        searches |= others[result['model']]
        styles = line_styles(searches)
        # open markers of falling size: where two searches say the same, both are seen
        for (search, captions), size in zip(searches.items(), np.linspace(11, 4, len(searches)), strict=True):
            score = cider_d(references, captions)['CIDEr-D']
            style = styles[search] | dict(linestyle='', fillstyle='none', markersize=size, markeredgewidth=1.2)
            above.plot(len(set(map(tuple, captions))), score, **style)
            below.plot(np.mean([len(words) for words in captions]), score, **style)
        above.set(title=label(result['model']), xlabel=f'different captions of {len(references)}',
                  xlim=(0, 1.05 * len(references)))
        above.xaxis.get_major_locator().set_params(integer=True)
        below.set(xlabel='words per caption')
    for axes in panels[:, 0]:
        axes.set(ylabel='CIDEr-D')
        axes.margins(y=0.12)  # no marker is cut
    figure.legend(below.lines, drawable(searches), loc='outside lower center', ncols=4)
    return figure


def bleu_table(results):
    """All scores as a Markdown table, a row per decoder and beam size.

    :param results: list of dicts of ``evaluate.evaluate``
    """
    scores = score_names([row for result in results for row in result['scores']])
    rows = []
    for result in results:
        best = result['best_epoch'] or ''  # an ensemble has none
        for row in result['scores']:
            rows.append([label(result['model']), f"{result['parameters']:,}", best, row['beam_size'],
                         *(f'{row[name]:.3f}' for name in scores), f"{row['seconds']:.1f}"])
    return markdown_table(['decoder', 'parameters', 'best epoch', 'beam', *scores, 'seconds'], rows)
