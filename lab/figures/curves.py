"""Learning curves, and scores against beam size."""

import math
from pathlib import Path

import matplotlib.pyplot as plt

from lab.decode.metrics import score_names
from lab.figures.style import DECODER_NAMES, WIDTH, drawable, label, line_styles
from utils import best_epoch, markdown_table, read_json


def read_histories(folder):
    """The histories that trainings saved in a run folder.

    :return: dict decoder name -> history of ``solver.train``, the plain LSTM first, then soft attention, then others
    :raises ValueError: a file that is cut
    """
    histories = {path.stem.removeprefix('history_'): read_json(path, 'delete it, or train this decoder again')
                 for path in sorted(Path(folder).expanduser().glob('history_*.json'))}
    known = [name for name in DECODER_NAMES if name in histories]
    return {name: histories[name] for name in [*known, *(name for name in histories if name not in known)]}


def plot_history(histories, begins=None, training=True):
    """Learning curves of one run or of many: loss, top-5 accuracy and BLEU-4 per epoch.

    :param histories: dict name -> history of ``solver.train``, or list of histories, one per seed: the first is drawn
        strongest
    :param begins: dict name -> list of pairs: after how many epochs of what came before these histories begin, and the
        last of these (None: it is not known), from which a dotted line leads here; without it all begin at 0
    :param training: False: the validation split alone, and of it the cross-entropy without the penalty of attention,
        which not all runs have
    """
    runs = {name: seeds if isinstance(seeds[0], list) else [seeds] for name, seeds in histories.items()}
    names, lines = dict(zip(runs, drawable(map(label, runs)), strict=True)), {}
    recorded = all('val_cross_entropy' in history[0] for seeds in runs.values() for history in seeds)
    loss = 'val_loss' if training or not recorded else 'val_cross_entropy'
    panels = {loss: ('loss' if loss == 'val_loss' else 'cross-entropy', 'train_loss', '--'),
              'val_top5': ('top-5 accuracy, %', 'train_top5', '--'), 'val_greedy_bleu4': ('BLEU-4', 'val_bleu4', ':')}
    figure, axes_of = plt.subplots(1, 3, figsize=(WIDTH, 2.8 + 0.06 * len(runs)))
    for axes, (key, (title, other, dashes)) in zip(axes_of, panels.items(), strict=True):
        for name, style in line_styles(runs).items():
            for seed, history in enumerate(runs[name]):
                before, last = begins[name][seed] if begins else (0, None)
                epochs, values = [before + entry['epoch'] for entry in history], [entry[key] for entry in history]
                line = style | dict(alpha=0.4 if seed else 1)
                thin = line | dict(marker='' if len(history) > 1 else '.', linewidth=1)
                drawn, = axes.plot(epochs, values, label=None if seed else names[name], **line)
                lines.setdefault(name, drawn)
                if last and key in last:
                    axes.plot([before, epochs[0]], [last[key], values[0]], ':', **thin)
                # self-critical training has minus CIDEr-D for its loss, and no accuracy
                if training and (history[0]['train_top5'] is not None or other == 'val_bleu4'):
                    axes.plot(epochs, [entry[other] for entry in history], dashes, **thin)
                best = best_epoch(history)
                if training and key == 'val_greedy_bleu4':
                    axes.plot(before + best['epoch'], best[key], **line | dict(marker='*', markersize=11))
        axes.set(title=title if training else f'validation {title}', xlabel='epoch')
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    handles, names = [*lines.values()], [*names.values()]
    if training:
        kinds = {'training': '--', 'validation': '-', 'teacher forcing': ':', 'best': '*'}
        handles += [axes.plot([], [], kind, color='0.3', markersize=8)[0] for kind in kinds.values()]
        names += kinds
    room = 100 // (max(map(len, names)) + 8)
    figure.legend(handles, names, loc='outside lower center', ncols=max(room, 1))
    return figure


def plot_bleu(results):
    """All scores and the length of the captions against beam size, a line per decoder.

    :param results: list of dicts of ``evaluate.evaluate``
    """
    names = drawable([label(result['model']) for result in results], 28)
    scores = score_names([row for result in results for row in result['scores']])
    rows, columns = math.ceil((len(scores) + 2) / 4), 4
    height = max(2.2 * rows, 0.16 * rows * len('\n'.join(names).splitlines()))  # the legend must find room in a row
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
        axes.set(title=key, xlabel='beam size', xticks=tested)
        axes.margins(0.1)
    axes.axhline(results[0]['reference_words'], color='0.4', linestyle=':')
    axes.set(title='words per caption')
    legend.legend(axes.lines, [*names, 'people'], loc='center').set_in_layout(False)
    return figure


def bleu_table(results):
    """The same figures as text, a row per decoder and beam size (Markdown).

    :param results: list of dicts of ``evaluate.evaluate``
    """
    scores, rows = score_names([row for result in results for row in result['scores']]), []
    for result in results:
        best = result['best_epoch'] or ''  # an ensemble has none
        for row in result['scores']:
            rows.append([label(result['model']), f"{result['parameters']:,}", best, row['beam_size'],
                         *(f'{row[name]:.3f}' for name in scores), f"{row['seconds']:.1f}"])
    return markdown_table(['decoder', 'parameters', 'best epoch', 'beam', *scores, 'seconds'], rows)
