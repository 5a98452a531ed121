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
from skimage.color import deltaE_ciede2000, rgb2lab  # noqa: E402

from datasets import CaptionDataset  # noqa: E402
from lab.data.shapes import attention_per_word  # noqa: E402
from lab.figures import (  # noqa: E402
    bleu_table,
    load_images,
    plot_attention,
    plot_bleu,
    plot_captions,
    plot_history,
    plot_pointing,
    plot_sheet,
    plot_side_by_side,
    plot_visual_grounding,
    read_histories,
    save_figure,
    save_gif,
    style,
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
    scores = [{'beam_size': k, 'seconds': 1.25 * k, 'words': 11 - k + shift,
               **{f'BLEU-{n}': 0.9 - 0.1 * n + 0.01 * k + shift for n in (1, 2, 3, 4)}} for k in (1, 3, 5)]
    return dict(model=name, parameters=1234567, best_epoch=7, epochs=9, train_seconds=12.0, scores=scores,
                reference_words=10.5, captions=[], captions_beam_size=3)


def picture(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize('epochs', [1, 5])
def test_history(epochs):
    histories = {'NoAttention': history(epochs, best=1), 'Attention': history(epochs, best=epochs)}
    figure = plot_history(histories)
    figure.canvas.draw()
    loss, top5, bleu4 = figure.axes
    assert [len(axes.lines) for axes in (loss, top5)] == [4, 4]
    assert set(loss.get_xticks()) <= set(range(epochs + 2))  # no half epochs
    assert all(line.get_marker() or epochs > 1 for line in loss.lines)  # a line of one point would not be seen
    drawn = [(line.get_color(), line.get_linestyle(), list(line.get_ydata())) for line in loss.lines[:4]]
    assert [(style, values) for _, style, values in drawn[2:]] == [
        ('-', [3.5 / e for e in range(1, epochs + 1)]), ('--', [3 / e for e in range(1, epochs + 1)])]
    assert drawn[0][0] == drawn[1][0] != drawn[2][0] == drawn[3][0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        'plain LSTM', 'soft attention', 'training', 'validation', 'teacher forcing', 'best']
    stars = [line for line in bleu4.lines if line.get_marker() == '*' and len(line.get_xdata())]
    assert [(star.get_xdata()[0], star.get_ydata()[0]) for star in stars] == [(1, 0.3), (epochs, 0.3)]


def test_history_of_one_decoder():
    plot_history({'Attention': history(3)}).canvas.draw()


def test_histories_of_a_folder(tmp_path):
    for name in ('Attention', 'Adaptive', 'NoAttention'):
        (tmp_path / f'history_{name}.json').write_text(json.dumps(history(2)))
    histories = read_histories(tmp_path)
    assert list(histories) == ['NoAttention', 'Attention', 'Adaptive'] and histories['Adaptive'] == history(2)
    figure = plot_history(histories)
    colors = {line.get_label(): line.get_color() for line in figure.axes[0].lines if line.get_label()[0] != '_'}
    assert list(colors) == ['plain LSTM', 'soft attention', 'Adaptive'] and len(set(colors.values())) == 3
    alone = plot_history({'Attention': history(2)}).axes[0].lines[0]
    assert alone.get_color() == colors['soft attention']  # as in every other figure


@pytest.mark.parametrize('content', ['', '[{"epoch": 1, "train_l', '\0' * 100], ids=['empty', 'cut', 'zeros'])
def test_a_damaged_history_is_named(tmp_path, content):
    (tmp_path / 'history_Attention.json').write_text(content)
    with pytest.raises(ValueError, match='history_Attention.json is .*cut.*: delete it, or train this decoder again$'):
        read_histories(tmp_path)


def test_bleu_and_length():
    few = result('NoAttention')
    few['scores'] = few['scores'][:1]
    ticks = plot_bleu([result('Attention'), few]).axes[0].get_xticks()
    assert [int(tick) for tick in ticks] == [1, 3, 5]

    figure = plot_bleu([result('NoAttention'), result('Attention', 0.05)])
    figure.canvas.draw()
    *panels, legend = figure.axes
    assert [axes.get_title() for axes in panels] == ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'words per caption']
    for axes, plain in zip(panels, ((0.81, 0.83, 0.85), (0.71, 0.73, 0.75), (0.61, 0.63, 0.65), (0.51, 0.53, 0.55),
                                    (10, 8, 6)), strict=True):
        for line, shift in zip(axes.lines, (0, 0.05), strict=False):
            assert list(line.get_xdata()) == [1, 3, 5]
            assert list(line.get_ydata()) == pytest.approx([value + shift for value in plain])
        assert [int(tick) for tick in axes.get_xticks()] == [1, 3, 5]
    assert list(panels[4].lines[2].get_ydata()) == [10.5, 10.5]
    assert [text.get_text() for text in legend.get_legend().get_texts()] == ['plain LSTM', 'soft attention', 'people']


def test_bleu_of_many_decoders_with_long_names():
    figure = plot_bleu([result(f'soft attention, self-critical, feature dropout, nine epochs, seed {i}')
                        for i in range(14)])
    figure.canvas.draw()
    box = figure.axes[-1].get_legend().get_window_extent()
    assert 0 < box.y0 and box.x1 < figure.bbox.x1 and box.y1 < figure.axes[2].get_window_extent().y0
    assert box.x0 > figure.axes[4].get_window_extent().x1


def test_comparison():
    histories = {'Attention': [history(3), history(2)], 'another': [history(4)]}
    figure = plot_history(histories, training=False)
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
    begins = {'Attention': [(0, None)] * 2, 'another': [(2, last)]}
    losses = plot_history(histories, begins, training=False).axes[0]
    assert [list(line.get_xdata()) for line in losses.lines] == [[1, 2, 3], [1, 2], [3, 4, 5, 6], [2, 3]]
    assert [line.get_ydata()[0] for line in losses.lines] == [3.5, 3.5, 3.5, 4.25]
    assert losses.lines[3].get_ydata()[1] == 3.5 and losses.lines[3].get_color() == losses.lines[2].get_color()


def test_no_two_of_many_runs_are_drawn_alike_even_in_grey():
    lines = plot_history({f'run {i}': [history(2)] for i in range(20)}, training=False).axes[0].lines
    assert len({(line.get_marker(), line.get_fillstyle()) for line in lines}) == 20
    assert {line.get_alpha() for line in lines} == {1}  # the faint ones are other seeds


# What people see who lack a kind of cones: linear RGB times these (Machado, Oliveira and Fernandes 2009, severity 1.0).
CONES = {'all': np.eye(3),
         'no L': [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
         'no M': [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
         'no S': [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]}


@pytest.mark.parametrize('cones', CONES)
def test_colour_blind_people_tell_the_colours_apart(cones):
    rgb = np.array([matplotlib.colors.to_rgb(color) for color in style.COLORS])
    seen = np.clip((rgb ** 2.2) @ np.transpose(CONES[cones]), 0, 1) ** (1 / 2.2)
    lab = rgb2lab(seen[np.newaxis])[0]
    apart = deltaE_ciede2000(lab[:, np.newaxis], lab[np.newaxis]) + 100 * np.eye(len(lab))
    assert apart.min() > 10  # 1 is what an eye just notices
    assert abs(lab[0, 0] - lab[1, 0]) > 15  # the two decoders of the lab, and two kinds of bars, differ in grey too
    assert lab[:, 0].max() < 80  # nothing is faint on white


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
    assert [text.get_text() for text in axes.get_xticklabels()] == ['red (2)', 'of (2)']
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
    assert not any(axes.images for axes in figure.axes[count:])
    assert not any(len(axes.get_xticks()) or axes.get_frame_on() for axes in figure.axes)


def test_sheet_with_a_name_per_row():
    rows = [('best', [picture(0), picture(1)], ['one', 'two']), ('worst', [], [])]
    figure = plot_sheet(rows, columns=2)
    figure.canvas.draw()
    assert [axes.get_ylabel() for axes in figure.axes] == ['best', '', 'worst: none', '']
    assert [len(axes.images) for axes in figure.axes] == [1, 1, 0, 0]


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
        'picture\neach map: its own scale',
        *(f'{word}\npeak {alpha.max():.0%}' for word, alpha in zip(words, alphas, strict=True))]
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


@pytest.mark.parametrize('shape', [(1, 1), (14, 14)])
def test_uniform_attention_leaves_the_picture_as_it_is(shape):
    for scale in ('word', 'caption'):
        figure = plot_attention(picture(), ['word'], np.full((1, *shape), 1 / np.prod(shape)), scale=scale)
        lit = figure.axes[1].images[0].get_array().astype(int)
        assert abs(lit - picture()).max() <= 1


def test_one_scale_for_all_words():
    alphas = torch.full((2, 4, 4), 0.2 / 15)
    alphas[0, 1, 2], alphas[1, 3, 0] = 0.8, 0.2
    image = np.full((64, 64, 3), 200, np.uint8)
    maps = {scale: plot_attention(image, ['first', 'second'], alphas, scale=scale) for scale in ('word', 'caption')}
    lightest = {scale: [int(axes.images[0].get_array().max()) for axes in figure.axes[1:3]]
                for scale, figure in maps.items()}
    assert min(lightest['word']) >= 199
    # a cell is smaller than what enlarges it, so that its centre loses a little
    assert lightest['caption'][0] > 180 and lightest['caption'][1] == pytest.approx(200 * (0.25 + 0.75 * 0.25), abs=8)
    assert maps['caption'].axes[0].get_title() == 'picture\nall maps: 0 to 80%'


def test_probability_and_gate_of_each_word():
    figure = plot_attention(picture(), ['red', 'star'], np.full((2, 4, 4), 1 / 16), probabilities=[0.25, 0.987],
                            gate=[0.4, 0.7])
    figure.canvas.draw()
    assert [axes.get_title() for axes in figure.axes[1:3]] == ['red\np 0.25, peak 6%', 'star\np 0.99, peak 6%']
    panel = figure.axes[-1]
    assert panel.get_ylabel() == 'mean β' and [bar.get_height() for bar in panel.patches] == [0.4, 0.7]


@pytest.mark.parametrize('shape', [(64, 64), (120, 40), (40, 120)])
def test_a_spoken_caption(tmp_path, shape):
    words, alphas = 'a red star'.split(), np.zeros((3, 4, 4))
    for alpha, cell in zip(alphas, [(0, 0), (1, 3), (3, 1)], strict=True):
        alpha[cell] = 1
    save_gif(np.full((*shape, 3), (250, 200, 100), np.uint8), words, alphas, tmp_path / 'new folder' / 'spoken.gif')
    path, = (tmp_path / 'new folder').iterdir()
    assert path.stat().st_size < 100_000
    with Image.open(path) as spoken:
        assert spoken.format == 'GIF' and spoken.n_frames == 4
        frames = [np.asarray((spoken.seek(i), spoken.convert('RGB'))[1]).astype(int) for i in range(4)]
    lit = [frame[:300, ..., 2].copy() for frame in frames]
    for frame in lit:
        frame[frame > 150] = 0  # white beside the picture
    sums = [frame.sum() for frame in lit]
    assert max(sums[:3]) < 0.8 * sums[3]  # at last the whole picture
    places = [np.unravel_index(frame.argmax(), frame.shape)[0] for frame in lit[:3]]
    assert places[0] < places[1] < places[2]  # rows 0, 1 and 3 of the grid
    ink = [(frame[336:] < 128).sum() for frame in frames]  # the caption so far, below the word
    assert 0 < ink[0] < ink[1] < ink[2] == ink[3]


def test_looking_at_what_is_named():
    per_word = dict(star=[(True, 0.2)] * 3 + [(False, 0.4)], ring=[(False, 0.1)] * 4, rare=[(True, 0.5)])
    figure = plot_pointing(per_word, at_least=2)
    figure.canvas.draw()
    axes, = figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ['star (4)', 'ring (4)']
    assert [bar.get_height() for bar in axes.patches] == [0.75, 0]
    chances = [(start[0], end[0], start[1]) for start, end in axes.collections[0].get_segments()]
    assert chances == [pytest.approx((-0.4, 0.4, 0.25)), pytest.approx((0.6, 1.4, 0.1))]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [  # of all words, the rare ones too
        'by chance: 21%', 'peak in the box: 44% of all such words']


@pytest.fixture
def other_fonts(monkeypatch):
    """In the test CHINESE_FONTS are others, and what is found is forgotten afterwards."""
    family = plt.rcParams['font.family']
    style.add_chinese_fonts.cache_clear()
    yield lambda names: monkeypatch.setattr(style, 'CHINESE_FONTS', names)
    style.add_chinese_fonts.cache_clear()
    plt.rcParams['font.family'] = family


def test_chinese_where_there_is_a_font(other_fonts):
    other_fonts(('a font that nobody has', 'DejaVu Sans'))
    for text, family in (('a red star', ['sans-serif']), ('䷀ a', ['sans-serif', 'DejaVu Sans'])):  # which has ䷀
        plot_captions([picture()], [text])
        assert plt.rcParams['font.family'] == family


@pytest.mark.filterwarnings('default')
def test_chinese_where_there_is_no_font(other_fonts, capsys, tmp_path, recwarn):
    other_fonts(())
    for _ in range(2):
        save_figure(plot_captions([picture()], ['一只棕色的狗']), tmp_path / 'figure.png')
    assert capsys.readouterr().out.count('pip install mplfonts') == 1 and not recwarn


def test_chinese_captions_have_no_spaces_and_lines_of_half_as_many_characters(other_fonts):
    other_fonts(())
    figure = plot_attention(picture(), ['一只', '狗'], np.full((2, 4, 4), 1 / 16))
    assert figure.get_suptitle() == '一只狗'
    figure = plot_captions([picture()], ['狗' * 50])
    assert [len(line) for line in figure.axes[0].get_title(loc='left').splitlines()] == [19, 19, 12]


def test_text_of_data_is_drawn_as_it_is(tmp_path):
    text, number = r'_\$ $$ $x$', np.full((1, 2, 2), 0.2)  # a leading _ hides a name from a legend
    for places, figure in ((3, plot_attention(picture(), [text], number)), (1, plot_side_by_side([picture()], [text])),
                           (2, plot_sheet([(text, [picture()], [text])])), (1, plot_history({text: history(2)})),
                           (1, plot_bleu([result(text)])), (1, plot_pointing({text: [(True, 0.5)]})),
                           (1, plot_visual_grounding({text: [0.5]}, ()))):
        figure.canvas.draw()
        drawn = [part.get_text() for part in figure.findobj(matplotlib.text.Text) if part.get_visible()]
        assert not any(map(matplotlib.cbook.is_math_text, drawn))
        assert sum(text in one.replace(r'\$', '$') for one in drawn) == places
    save_gif(picture(), [text], number, tmp_path / 'spoken.gif')


@pytest.mark.parametrize('weight', [np.nan, np.inf])
def test_attention_that_is_no_number_is_refused(tmp_path, weight):
    given = picture(), ['a'], np.full((1, 2, 2), weight)
    for draw, more in ((plot_attention, ()), (save_gif, [tmp_path / 'spoken.gif'])):
        with pytest.raises(ValueError, match='the attention weights hold NaN or infinity'):
            draw(*given, *more)
    assert not plt.get_fignums() and not list(tmp_path.iterdir())


def test_save_figure(tmp_path):
    path = tmp_path / 'new folder' / 'figure.png'
    for _ in range(2):  # the second time over the first
        save_figure(plot_captions([picture()], ['title']), path)
    with Image.open(path) as image:
        assert image.format == 'PNG' and min(image.size) > 300
    assert path.with_suffix('.pdf').read_bytes().startswith(b'%PDF')
    assert sorted(file.name for file in path.parent.iterdir()) == ['figure.pdf', 'figure.png']
