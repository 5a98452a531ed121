"""The figures: drawn without a warning, and showing what they are given."""

import json
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.text import Text

from lab import figures
from lab.figures import plot_attention, plot_bleu, plot_captions, plot_history
from lab.figures.attention import HEAT, VIOLET, YELLOW

plt.switch_backend('Agg')
pytestmark = pytest.mark.filterwarnings('error')


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close('all')


def history(epochs, best=2):
    return [dict(epoch=e, train_loss=3 / e, train_top5=50 + e, val_loss=3.5 / e, val_cross_entropy=3.2 / e,
                 val_top5=45 + e, val_bleu4=0.01 * e, val_greedy_bleu4=0.3 if e == best else 0.2)
            for e in range(1, epochs + 1)]


def result(name, shift=0.0, **scores):
    rows = [{'beam_size': k, 'seconds': 1.25 * k, 'words': 11 - k + shift, **scores,
             **{f'BLEU-{n}': 0.9 - 0.1 * n + 0.01 * k + shift for n in (1, 2, 3, 4)}} for k in (1, 3, 5)]
    return dict(model=name, parameters=1234567, best_epoch=7, scores=rows, reference_words=10.5)


def picture(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def points(line):
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def bars(axes):
    """Names below them and heights."""
    return [text.get_text() for text in axes.get_xticklabels()], pytest.approx([b.get_height() for b in axes.patches])


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def texts_of(figure):
    figure.canvas.draw()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


# --- Curves ---


@pytest.mark.parametrize(('epochs', 'monitor'), [(1, 'greedy_bleu4'), (5, 'greedy_bleu4'), (5, 'loss')])
def test_history(epochs, monitor):
    figure = plot_history({name: [entry | dict(monitor=monitor) for entry in history(epochs, best)]
                           for name, best in dict(NoAttention=1, Attention=epochs).items()})
    figure.canvas.draw()
    loss, top5, bleu4 = figure.axes
    assert all(line.get_marker() or epochs > 1 for line in loss.lines)  # a line of one point would not be seen
    for axes, key in ((loss, 'loss'), (top5, 'top5')):
        lines = [line for line in axes.lines if line.get_marker() != '*']
        for line, split in zip(lines, ['val', 'train'] * 2, strict=False):
            assert points(line) == [(entry['epoch'], entry[f'{split}_{key}']) for entry in history(epochs)]
    assert legend(figure)[:2] == ['plain LSTM', 'soft attention']
    starred, best = (loss, [(5, 0.7)] * 2) if monitor == 'loss' else (bleu4, [(1, 0.3), (epochs, 0.3)])
    stars = [line for line in starred.lines if line.get_marker() == '*' and len(line.get_xdata())]
    assert [points(star) for star in stars] == [[point] for point in best]


def test_self_critical_training_has_no_accuracy():
    """And its own score in place of BLEU-4, with a star at the best epoch."""
    critical = [entry | dict(train_top5=None, monitor='greedy_cider', val_greedy_cider=score)
                for entry, score in zip(history(3), (0.5, 0.4, 0.7), strict=True)]
    _, top5, cider = plot_history({'Attention': critical}).axes
    assert [points(line) for line in top5.lines] == [[(1, 46), (2, 47), (3, 48)]]
    assert [points(line) for line in cider.lines[:2]] == [[(1, 0.5), (2, 0.4), (3, 0.7)], [(3, 0.7)]]


def test_histories_of_a_folder(tmp_path):
    for name in ('Attention', 'Adaptive', 'NoAttention'):
        (tmp_path / f'history_{name}.json').write_text(json.dumps(history(2)))
    histories = figures.read_histories(tmp_path)
    assert list(histories) == ['NoAttention', 'Attention', 'Adaptive'] and histories['Adaptive'] == history(2)
    lines = plot_history(histories).axes[0].lines[::2]
    assert len({line.get_color() for line in lines}) == 3
    alone = plot_history({'Attention': history(2)}).axes[0].lines[0]
    assert alone.get_color() == lines[1].get_color()  # as in every other figure


def test_comparison():
    """Of validation scores only. A second phase begins where its first ends, and a dotted line joins them."""
    histories = {'Attention': [history(3), history(2)], 'another': [history(4)]}
    begins = {'Attention': [(0, None)] * 2, 'another': [(2, history(2)[-1])]}
    figure = plot_history(histories, begins, training=False)
    assert legend(figure) == ['soft attention', 'another']
    for axes, key in zip(figure.axes, ('val_cross_entropy', 'val_top5', 'val_greedy_bleu4'), strict=True):
        *curves, dotted = axes.lines
        assert [points(line) for line in curves] == [[(before + entry['epoch'], entry[key]) for entry in history(n)]
                                                     for n, before in ((3, 0), (2, 0), (4, 2))]
        assert points(dotted) == [(2, history(2)[-1][key]), (3, history(4)[0][key])]
        first, second, other, last = (line.get_color() for line in axes.lines)
        assert first == second != other == last  # a run's seeds are alike


def test_scores_and_length_against_beam_size():
    """A panel for each score that all have; not all need have the same beam sizes."""
    few = result('Attention', 0.05, mine=0.7)
    few['scores'] = few['scores'][:2]
    figure = plot_bleu([result('NoAttention', mine=0.5), few])
    panels = {axes.get_title().replace('words per caption', 'words'): axes for axes in figure.axes[:6]}
    assert set(panels) == {'BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'mine', 'words'}
    for name, axes in panels.items():
        assert [int(tick) for tick in axes.get_xticks()] == [1, 3, 5]
        for line, scores in zip(axes.lines, (result('', mine=0.5)['scores'], few['scores']), strict=False):
            assert points(line) == [(row['beam_size'], row[name]) for row in scores]
    assert set(panels['words'].lines[2].get_ydata()) == {10.5}  # people's
    assert {'plain LSTM', 'soft attention'} < {text.get_text() for text in texts_of(figure)}
    assert 'mine' not in [axes.get_title() for axes in plot_bleu([result('A', mine=0.5), result('B')]).axes]


def test_table_of_scores():
    ensemble = dict(result('Ensemble', 0.05, mine=0.25), best_epoch=None)
    head, _, *rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in
                      figures.bleu_table([result('NoAttention', mine=0.5), ensemble]).splitlines()]
    first, last = (dict(zip(head, row, strict=True)) for row in (rows[0], rows[-1]))
    assert list(first.values())[:4] == ['plain LSTM', '1,234,567', '7', '1'] and first['BLEU-4'] == '0.510'
    assert list(last.values())[:4] == ['ensemble', '1,234,567', '', '5'] and last['mine'] == '0.250'


# --- Where it looks ---


@pytest.mark.parametrize('words', [['one'], 'a red star above a big blue ring'.split(), []])
def test_attention_has_a_panel_per_word(words):
    alphas, image = np.random.default_rng(0).random((len(words), 4, 4)), picture()
    figure = plot_attention(image, words, alphas)
    first, *maps = (axes for axes in figure.axes if axes.images)
    assert (first.images[0].get_array() == image).all() and figure.get_suptitle().split() == words
    assert [axes.get_title().split()[0] for axes in maps] == words
    assert all(f'{alpha.max():.0%}' in axes.get_title() for axes, alpha in zip(maps, alphas, strict=True))


def heated(color, value):
    """A color of the picture under the map's color of a value: (3,)"""
    color = np.array(color)
    gray = color @ [0.2125, 0.7154, 0.0721]
    return ((color + gray) / 2 + 255 * np.array(HEAT(value)[:3])) / 2


@pytest.mark.parametrize('cell', [(0, 0), (1, 3)])
def test_attention_is_yellow_where_alpha_is_high_and_violet_elsewhere(cell):
    alphas = np.full((1, 4, 4), 0.2 / 15)
    alphas[0][cell] = 0.8
    image = np.full((64, 96, 3), (250, 200, 100), np.uint8)  # each cell is 16 x 24 pixels
    shown = np.asarray(plot_attention(image, ['word'], alphas).axes[1].images[0].get_array())
    row, column = np.unravel_index(shown[..., 1].argmax(), (64, 96))
    assert (row // 16, column // 24) == cell
    assert shown[row, column] == pytest.approx(heated((250, 200, 100), YELLOW), abs=2)
    assert shown[60, 40] == pytest.approx(heated((250, 200, 100), VIOLET), abs=2)


@pytest.mark.parametrize(('scale', 'of_second'), [('word', YELLOW), ('caption', 0.25 * YELLOW + 0.75 * VIOLET)])
def test_one_scale_for_each_word_or_for_all(scale, of_second):
    alphas = np.full((2, 4, 4), 0.1)
    alphas[0, 1, 2], alphas[1, 3, 0] = 0.8, 0.2
    gray = np.full((64, 64, 3), 200, np.uint8)
    figure = plot_attention(gray, ['one', 'two'], alphas, scale=scale)
    yellowest = [int(axes.images[0].get_array()[..., 1].max()) for axes in figure.axes[1:3]]
    assert yellowest == pytest.approx([heated((200,) * 3, value)[1] for value in (YELLOW, of_second)], abs=4)
    uniform = plot_attention(gray, ['word'], np.full((1, 14, 14), 1 / 196), scale=scale).axes[1].images[0].get_array()
    assert abs(uniform - heated((200,) * 3, YELLOW)).max() <= 2


def test_bars_below_the_maps():
    """1 - beta where a sentinel may take the rest, or how open the gate is."""
    words, alphas = ['of', 'red', 'stars'], np.random.default_rng(0).dirichlet(np.ones(16), 3).reshape(3, 4, 4)

    def below(alphas, **options):
        return [bars(axes) for axes in plot_attention(picture(), words, alphas, **options).axes if axes.patches]

    assert below(alphas) == []  # all of the attention is the picture's
    assert below(alphas, sentinel=True) == [(words, [1, 1, 1])]  # it could look away, and never does
    assert below(alphas * np.array([0.1, 0.9, 0.7]).reshape(3, 1, 1)) == [(words, [0.1, 0.9, 0.7])]
    assert below(alphas, gate=[0.4, 0.7, 1.0]) == [(words, [0.4, 0.7, 1.0])]
    first, second = plot_attention(picture(), words[:2], alphas[:2], probabilities=[0.25, 0.987]).axes[1:3]
    assert '0.25' in first.get_title() and '0.99' in second.get_title()


def test_looks_word_by_word():
    captions = [dict(caption=words.split(), alphas=np.stack([np.full((2, 2), part / 4) for part in parts]))
                for words, parts in (('red of', [0.8, 0.2]), ('of star', [0.4, 1.0]), ('red', [0.6]))]
    figure = figures.plot_visual_grounding(captions, {'red', 'star'}, at_least=2)
    assert bars(figure.axes[0]) == (['red (2)', 'of (2)'], [0.7, 0.3])  # one star is too few
    assert '0.80' in legend(figure)[0] and '0.30' in legend(figure)[1]  # of all words, the star too


def test_looking_at_what_is_named():
    per_word = dict(star=[(True, 0.2)] * 3 + [(False, 0.4)], ring=[(False, 0.1)] * 4, rare=[(True, 0.5)])
    figure = figures.plot_pointing(per_word, at_least=2)
    assert bars(figure.axes[0]) == (['star (4)', 'ring (4)'], [0.75, 0])
    chances = [start for start, _ in figure.axes[0].collections[0].get_segments()]
    assert np.allclose(chances, [(-0.4, 0.25), (0.6, 0.1)])
    assert '21%' in legend(figure)[0] and '44%' in legend(figure)[1]  # of all words, the rare ones too


# --- Pictures and texts ---


def test_captions():
    images, titles = [picture(i) for i in range(4)], [f'caption {i}' for i in range(4)]
    drawn = [axes for axes in plot_captions(images, titles).axes if axes.images]
    for axes, image, title in zip(drawn, images, titles, strict=True):
        assert axes.get_title(loc='left') == title and (axes.images[0].get_array() == image).all()


def test_long_texts_are_whole_and_in_the_figure():
    text = 'a red star above a big blue ring ' * 4
    said = '\n'.join(f'decoder {i}: {text}' for i in range(11))
    for figure, stars in ((plot_captions([picture()], [text]), 4), (plot_bleu([result(text)] * 14), 56),
                          (figures.plot_side_by_side([picture()] * 2, [said] * 2), 88)):
        assert ' '.join(text.get_text() for text in texts_of(figure)).split().count('star') == stars
        pixels = np.asarray(figure.canvas.buffer_rgba())
        assert (pixels[[0, -1]] == 255).all() and (pixels[:, [0, -1]] == 255).all()  # nothing is cut off


def test_text_of_data_is_drawn_as_it_is():
    text, alphas = r'_\$ $$ $x$', np.full((1, 2, 2), 0.2)  # a leading _ hides a name from a legend
    for places, figure in ((3, plot_attention(picture(), [text], alphas)), (1, plot_history({text: history(2)})),
                           (2, figures.plot_sheet([(text, [picture()], [text])])), (1, plot_bleu([result(text)])),
                           (1, figures.plot_side_by_side([picture()], [text])),
                           (1, figures.plot_pointing({text: [(True, 0.5)]})),
                           (1, figures.plot_visual_grounding([dict(caption=[text], alphas=alphas)], ()))):
        drawn = [part.get_text() for part in texts_of(figure)]
        assert not any(map(is_math_text, drawn))
        assert sum(text in one.replace(r'\$', '$') for one in drawn) == places


def test_chinese():
    """No spaces, and half as many characters in a line."""
    with warnings.catch_warnings(action='ignore'):  # there may be no font
        assert plot_attention(picture(), ['一只', '狗'], np.full((2, 4, 4), 1 / 16)).get_suptitle() == '一只狗'
        title = plot_captions([picture()], ['狗' * 50]).axes[0].get_title(loc='left')
    assert max(map(len, title.split('\n'))) < 22
