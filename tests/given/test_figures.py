"""The figures: drawn without a warning, and showing what they are given."""

import json

import matplotlib

matplotlib.use('Agg')

import h5py  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from datasets import CaptionDataset  # noqa: E402
from lab.data.shapes import attention_per_word  # noqa: E402
from lab.figures import (  # noqa: E402
    bleu_table,
    load_images,
    plot_attention,
    plot_bleu,
    plot_captions,
    plot_comparison,
    plot_history,
    plot_side_by_side,
    plot_visual_grounding,
    read_histories,
    save_figure,
    spread,
)

pytestmark = pytest.mark.filterwarnings('error')


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close('all')


def history(epochs, best=2):
    return [dict(epoch=e, train_loss=3 / e, train_top5=50 + e, val_loss=3.5 / e, val_cross_entropy=3.2 / e,
                 val_top5=45 + e, val_bleu4=0.01 * e, val_greedy_bleu4=0.3 if e == best else 0.2, decoder_lr=1e-3,
                 seconds=1.0)
            for e in range(1, epochs + 1)]


def result(name, shift=0.0):
    scores = [{'beam_size': k, 'seconds': 1.25 * k, **{f'BLEU-{n}': 0.9 - 0.1 * n + 0.01 * k + shift
                                                       for n in (1, 2, 3, 4)}} for k in (1, 3, 5)]
    return dict(model=name, parameters=1234567, best_epoch=7, epochs=9, train_seconds=12.0, scores=scores,
                captions=[], captions_beam_size=3)


def picture(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize('epochs', [1, 5])
def test_history(epochs):
    histories = {'NoAttention': history(epochs, best=1), 'Attention': history(epochs, best=epochs)}
    figure = plot_history(histories)
    figure.canvas.draw()
    loss, top5, bleu4 = figure.axes
    assert [len(axes.lines) for axes in (loss, top5)] == [4, 4] and len(bleu4.lines) == 6
    lines = {line.get_label(): line for line in loss.lines}
    assert set(lines) == {'plain LSTM, training', 'plain LSTM, validation',
                          'soft attention, training', 'soft attention, validation'}
    assert list(lines['soft attention, validation'].get_ydata()) == [3.5 / e for e in range(1, epochs + 1)]
    stars = [line for line in bleu4.lines if line.get_marker() == '*']
    assert [(star.get_xdata()[0], star.get_ydata()[0]) for star in stars] == [(1, 0.3), (epochs, 0.3)]


def test_history_of_one_decoder():
    plot_history({'Attention': history(3)}).canvas.draw()


def test_histories_of_a_folder(tmp_path):
    for name in ('Attention', 'Adaptive', 'NoAttention'):
        (tmp_path / f'history_{name}.json').write_text(json.dumps(history(2)))
    histories = read_histories(tmp_path)
    assert list(histories) == ['NoAttention', 'Attention', 'Adaptive'] and histories['Adaptive'] == history(2)
    figure = plot_history(histories)
    colors = {line.get_label().split(',')[0]: line.get_color() for line in figure.axes[0].lines}
    assert list(colors) == ['plain LSTM', 'soft attention', 'Adaptive'] and len(set(colors.values())) == 3


@pytest.mark.parametrize('content', ['', '[{"epoch": 1, "train_l', '\0' * 100], ids=['empty', 'cut', 'zeros'])
def test_a_damaged_history_is_named(tmp_path, content):
    (tmp_path / 'history_Attention.json').write_text(content)
    with pytest.raises(ValueError, match='history_Attention.json is .*cut.*: delete it, or train this decoder again$'):
        read_histories(tmp_path)


def test_bleu():
    figure = plot_bleu([result('NoAttention'), result('Attention', 0.05)])
    figure.canvas.draw()
    assert [axes.get_title() for axes in figure.axes] == ['plain LSTM', 'soft attention']
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()  # so that heights can be compared
    for axes, shift in zip(figure.axes, (0, 0.05), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        assert list(lines) == ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4']
        assert list(lines['BLEU-2'].get_xdata()) == [1, 3, 5]
        assert list(lines['BLEU-2'].get_ydata()) == pytest.approx([0.71 + shift, 0.73 + shift, 0.75 + shift])
        assert [int(tick) for tick in axes.get_xticks()] == [1, 3, 5]
        assert f'{0.75 + shift:.3f}' in [text.get_text() for text in axes.texts]


def test_figures_beside_the_lines_keep_apart():
    close = result('Attention', 0.05)
    for score in close['scores']:
        score.update({'BLEU-1': 0.801, 'BLEU-2': 0.8, 'BLEU-3': 0.799})
    figure = plot_bleu([result('NoAttention'), close])
    figure.canvas.draw()
    for axes, apart in zip(figure.axes, (True, False), strict=True):
        boxes = [text.get_window_extent() for text in axes.texts]
        assert all(high.y0 > low.y1 for high, low in zip(boxes, boxes[1:], strict=False))
        ends = [axes.transData.transform(line.get_xydata()[-1])[1] for line in axes.lines]
        moved = [(box.y0 + box.y1) / 2 - end for box, end in zip(boxes, ends, strict=True)]
        assert (max(map(abs, moved)) < 2) == apart  # beside its line, where there is room
        assert abs(sum(moved)) < 4
    assert [text.get_text() for text in figure.axes[1].texts] == ['0.801', '0.800', '0.799', '0.600']


def test_spread():
    assert spread([0.9, 0.5], 0.1) == pytest.approx([0.9, 0.5])
    assert spread([0.5, 0.5, 0.1], 0.1) == pytest.approx([0.45, 0.55, 0.1])
    assert spread([0.3, 0.2, 0.31], 0.1) == pytest.approx([0.27, 0.17, 0.37])


def test_bleu_of_many_decoders_goes_over_several_rows():
    figure = plot_bleu([result(f'decoder {i}') for i in range(6)])
    figure.canvas.draw()
    assert figure.get_size_inches()[0] < 16 and [axes.axison for axes in figure.axes] == [True] * 6 + [False] * 2
    assert figure.axes[5].get_title() == 'decoder 5' and figure.axes[4].get_ylabel() == 'BLEU'


def test_long_names_stay_above_their_own_panels():
    figure = plot_bleu([result('soft attention, self-critical, feature dropout, nine epochs') for _ in range(4)])
    figure.canvas.draw()
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    assert all(left.x1 + 5 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))
    assert ' '.join(figure.axes[0].get_title().split()).endswith('feature dropout, nine epochs')


def test_comparison():
    histories = {'Attention': [history(3), history(2)], 'another': [history(4)]}
    figure = plot_comparison(histories)
    figure.canvas.draw()
    for axes, key in zip(figure.axes, ('val_cross_entropy', 'val_top5', 'val_greedy_bleu4'), strict=True):
        drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
        assert drawn == [(list(range(1, n + 1)), [entry[key] for entry in history(n)]) for n in (3, 2, 4)]
        first, second, other = (line.get_color() for line in axes.lines)
        assert first == second != other  # a run's seeds are alike
    legend, = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ['soft attention', 'another']
    assert figure.axes[0].get_title() == 'validation cross-entropy'
    for entry in histories['another'][0]:
        del entry['val_cross_entropy']  # trained before it was recorded: not two things in one panel
    last = dict(epoch=2, val_loss=4.25)
    losses = plot_comparison(histories, {'Attention': [(0, None)] * 2, 'another': [(2, last)]}).axes[0]
    assert [list(line.get_xdata()) for line in losses.lines] == [[1, 2, 3], [1, 2], [3, 4, 5, 6], [2, 3]]
    assert losses.get_title() == 'validation loss'
    assert [line.get_ydata()[0] for line in losses.lines] == [3.5, 3.5, 3.5, 4.25]
    assert losses.lines[3].get_ydata()[1] == 3.5 and losses.lines[3].get_color() == losses.lines[2].get_color()


def test_no_two_of_many_runs_are_drawn_alike():
    lines = plot_comparison({f'run {i}': [history(2)] for i in range(20)}).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 20
    assert {line.get_alpha() for line in lines} == {1}  # the faint ones are other seeds


def test_pictures_that_there_are_not(tmp_path):
    path = tmp_path / 'TEST_IMAGES_set.hdf5'
    with pytest.raises(FileNotFoundError, match='TEST_IMAGES_set.hdf5 is not there: run create_input_files first'):
        load_images(path, [0])
    with h5py.File(path, 'w') as file:
        file['images'] = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    assert load_images(path, [1])[0][2, 3].tolist() == [48 + 11, 48 + 27, 48 + 43]
    for number in (2, -1):
        with pytest.raises(ValueError, match=f'there is no picture {number} in .*: it has 2, 0 to 1'):
            load_images(path, [0, number])


def when_it_looks(alphas, sentinel=False):
    figure = plot_attention(picture(), ['of', 'red', 'stars'], alphas, sentinel)
    figure.canvas.draw()
    return [axes for axes in figure.axes if axes.get_title() == 'when it looks']


def test_when_it_looks():
    alphas = np.random.default_rng(0).dirichlet(np.ones(16), 3).reshape(3, 4, 4)
    assert not when_it_looks(alphas)  # all of the attention is the picture's
    panel, = when_it_looks(alphas, sentinel=True)  # it could look away, and never does
    assert [bar.get_height() for bar in panel.patches] == pytest.approx([1, 1, 1])
    panel, = when_it_looks(alphas * np.array([0.1, 0.9, 0.7]).reshape(3, 1, 1))
    assert [bar.get_height() for bar in panel.patches] == pytest.approx([0.1, 0.9, 0.7])
    assert [text.get_text() for text in panel.get_xticklabels()] == ['of', 'red', 'stars']


def test_looks_word_by_word():
    captions = [dict(caption=['red', 'of'], alphas=np.stack([np.full((2, 2), 0.2), np.full((2, 2), 0.05)])),
                dict(caption=['of', 'star'], alphas=np.stack([np.full((2, 2), 0.1), np.full((2, 2), 0.25)]))]
    per_word = attention_per_word(captions)
    assert {word: pytest.approx(values) for word, values in per_word.items()} == dict(
        red=[0.8], of=[0.2, 0.4], star=[1.0])
    figure = plot_visual_grounding({**per_word, 'red': [0.8, 0.6]}, {'red', 'star'}, at_least=2)  # one star is too few
    figure.canvas.draw()
    axes, = figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ['red', 'of']
    bars = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert bars == {'shapes and colours: 0.80': [pytest.approx(0.7)], 'other words: 0.30': [pytest.approx(0.3)]}


def test_pictures_with_the_words_of_many_decoders_beside():
    text = '\n'.join([f'decoder {i}: ' + 'word ' * 30 for i in range(11)])
    figure = plot_side_by_side([picture(0), picture(1)], [text, 'one: a dog'])
    figure.canvas.draw()
    assert len(figure.axes) == 4 and not any(axes.axison for axes in figure.axes)
    shown, written = figure.axes[:2]
    box = written.texts[0].get_window_extent()
    assert written.texts[0].get_text().split() == text.split()  # all of it
    assert box.x0 > shown.get_window_extent().x1 and box.x1 < figure.bbox.x1  # beside the picture, in the figure
    assert 0 < box.y0 and box.y1 < figure.bbox.y1 and shown.get_window_extent().width > 100
    assert figure.axes[3].texts[0].get_window_extent().y1 < box.y0  # rows do not touch


def test_bleu_table():
    ensemble = dict(result('Ensemble'), best_epoch=None)
    lines = bleu_table([result('NoAttention'), result('Attention', 0.05), ensemble]).splitlines()
    assert len(lines) == 2 + 9
    assert lines[8].startswith('| ensemble | 1,234,567 |  | 1 |')
    assert {line.count('|') for line in lines} == {10}
    assert lines[2] == '| plain LSTM | 1,234,567 | 7 | 1 | 0.810 | 0.710 | 0.610 | 0.510 | 1.2 |'
    assert lines[7] == '| soft attention | 1,234,567 | 7 | 5 | 0.900 | 0.800 | 0.700 | 0.600 | 6.2 |'


def test_load_images(tiny_data):
    dataset = CaptionDataset(**tiny_data, split='TEST')
    images = load_images(dataset.images_path, [4, 0])
    assert [image.shape for image in images] == [(256, 256, 3)] * 2
    assert (images[0] == dataset.image(4).permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize('count', [1, 3, 4])
def test_captions(count):
    images, titles = [picture(i) for i in range(count)], [f'caption {i}' for i in range(count)]
    figure = plot_captions(images, titles)
    figure.canvas.draw()
    assert len(figure.axes) == 3 * -(-count // 3)
    for axes, image, title in zip(figure.axes, images, titles, strict=False):
        assert axes.get_title(loc='left') == title and (axes.images[0].get_array() == image).all()
        assert not axes.axison
    assert not any(axes.images or axes.axison for axes in figure.axes[count:])


def test_long_captions_are_broken():
    figure = plot_captions([picture()], ['word ' * 30 + '\n\nsecond'])
    lines = figure.axes[0].get_title(loc='left').splitlines()
    assert max(map(len, lines)) <= 44 and lines[-1] == 'second'
    assert ' '.join(lines).split().count('word') == 30


@pytest.mark.parametrize('words', [['one'], 'a red star above a big blue ring'.split(), []])
def test_attention_has_a_panel_per_word(words):
    alphas = torch.rand(len(words), 4, 4)
    figure = plot_attention(picture(), words, alphas)
    figure.canvas.draw()
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == [
        'picture', *(f'{word}  {alpha.max():.0%}' for word, alpha in zip(words, alphas, strict=True))]
    assert (drawn[0].images[0].get_array() == picture()).all()
    assert figure.get_suptitle().replace('\n', ' ') == ' '.join(words)
    assert len(figure.axes) % min(5, len(words) + 1) == 0


@pytest.mark.parametrize('cell', [(0, 0), (1, 3), (3, 2)])
def test_attention_is_brightest_where_alpha_is_high(cell):
    alphas = torch.full((2, 4, 4), 0.2 / 15)
    alphas[0, 2, 1] = alphas[1][cell] = 0.8
    image = np.full((64, 96, 3), (250, 200, 100), np.uint8)  # each cell is 16 x 24 pixels
    figure = plot_attention(image, ['first', 'second'], alphas)
    for axes, (row, column) in zip(figure.axes[1:], [(2, 1), cell], strict=True):
        lit = np.asarray(axes.images[0].get_array())
        place = np.unravel_index(lit[..., 0].argmax(), (64, 96))
        assert (place[0] // 16, place[1] // 24) == (row, column)
        assert (lit.max(axis=(0, 1)) == (250, 200, 100)).all()  # the picture itself where it looks
        assert (lit.min(axis=(0, 1)) <= (65, 52, 26)).all()
    # and so it is in the finished figure
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., 0].astype(float)
    axes = figure.axes[2]
    height = pixels.shape[0]

    def brightness(row, column):
        x, y = axes.transData.transform((24 * column + 12, 16 * row + 8))
        return pixels[height - int(y) - 1, int(x)]

    others = [brightness(r, c) for r in range(4) for c in range(4) if abs(r - cell[0]) + abs(c - cell[1]) > 2]
    assert brightness(*cell) > max(others) + 50


def test_uniform_attention_is_drawn():
    plot_attention(picture(), ['word'], np.full((1, 14, 14), 1 / 196)).canvas.draw()


def test_save_figure(tmp_path):
    path = tmp_path / 'new folder' / 'figure.png'
    for _ in range(2):  # the second time over the first
        save_figure(plot_captions([picture()], ['title']), path)
    with Image.open(path) as image:
        assert image.format == 'PNG' and min(image.size) > 300
    assert [file.name for file in path.parent.iterdir()] == ['figure.png']
