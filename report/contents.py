"""The tables and figures of the lab report, one call each.

A folder is the ``output_folder`` of trainings that ``test.ipynb`` has tested, or that of ``compare.ipynb``. In place of
a missing file stands a sentence with the notebook that makes it; ``render.py`` lists these sentences.
"""

import base64
import functools
import html
import io
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.display import HTML, Markdown
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lab.experiments.compare import all_scores, folder_name, score_table  # noqa: E402  the path comes first
from lab.figures import bleu_table, label, plot_bleu, plot_history, read_histories  # noqa: E402
from lab.train.checkpoints import read_checkpoint  # noqa: E402
from lab.train.settings import check_settings, plain  # noqa: E402
from utils import as_text, markdown_table, read_json, sentence  # noqa: E402

DEFAULTS = check_settings({})  # with the monitor that None stands for
NOT_SHOWN = ('device', 'checkpoint', 'output_folder')  # settings that change no result
OF_CODE = dict(loss='caption_loss', optimizer='Adam', code='')  # what makes a training, beside its settings
NOT_USED, UNUSED = {'NoAttention': ('attention_dim', 'alpha_c')}, '–'  # settings that a decoder does not use
AGAIN = 'delete it, and run the notebook that made it again'


class Missing(Exception):
    """A file of the runs is not there; the message says which, and which notebook makes it."""


def message_in_its_place(function):
    """In place of something :class:`Missing` the report holds its message."""
    @functools.wraps(function)
    def shown(*arguments):
        try:
            return function(*map(plain, arguments))
        except Missing as missing:
            return HTML(note(missing))
    return shown


def note(sentence):
    """A sentence about something missing, as HTML; what is in backquotes becomes code."""
    sentence = re.sub('&#96;(.+?)&#96;', r'<code>\1</code>', as_text(sentence))
    return f'<p class="missing">{sentence}</p>'


# --- What the runs saved ---


def read_runs(folders):
    """The tested runs of a folder, or of a list of folders.

    :return: list of dicts: ``name`` for people; ``settings`` of its training, None of an ensemble or where its
        checkpoint is not there; ``seeds``, a dict of ``evaluate.evaluate`` for each seed, with its ``history``
    :raises Missing: no folder, or none with test results
    """
    folders = [Path(folder) for folder in ([folders] if isinstance(folders, (str, Path)) else folders)]
    if not folders:
        raise Missing('there are no runs to compare: name their folders in `improvement`, in the settings cell')
    runs = []
    ends = {folder.name for folder in folders}
    for folder in folders:
        found = saved_runs(folder)
        if not found:
            raise Missing(f'{folder} has no test results: run the training notebooks, then `test.ipynb`; or '
                          "`compare.ipynb` with `split = 'TEST'`")
        if len(folders) > 1:
            where = folder.name if len(ends) == len(folders) else folder
            found = [run | dict(name=f'{run["name"]} ({where})') for run in found]
        runs += found
    return runs


def saved_runs(folder):
    """The runs of one folder: those of ``compare.ipynb``, or the decoders that ``test.ipynb`` has tested."""
    if (folder / 'comparison.json').exists():
        return [run | dict(settings=settings_in(folder / folder_name(run.get('run', run['name'])),  # older: without
                                                'seed_*/BEST_checkpoint_*.pth.tar'))
                for run in read_json(folder / 'comparison.json', AGAIN)]
    runs = []
    for name, history in read_histories(folder).items():
        for path in tests_of(folder, name):
            result = read_json(path, AGAIN) | dict(history=history)
            runs.append(dict(name=label(result['model']), seeds=[result],
                             settings=settings_in(folder, f'BEST_checkpoint_{name}.pth.tar')))
    return runs


def tests_of(folder, name):
    """The files that ``test.ipynb`` leaves of a decoder: one, or one for each of several languages."""
    return [*folder.glob(f'test_{name}.json'), *sorted(folder.glob(f'test_{name}_??.json'))]


def settings_in(folder, pattern):
    """Settings of a folder's first checkpoint of such a name, and what ``OF_CODE`` lists; or None."""
    if not (checkpoints := sorted(folder.glob(pattern))):
        return None
    state = read_checkpoint(checkpoints[0])
    return state['settings'] | {what: state['fingerprints'].get(what, usual) for what, usual in OF_CODE.items()}


# --- How it is shown ---


def table(text, caption):
    """A table with its caption above it.

    :param text: a Markdown table
    """
    return Markdown(f'<p class="caption">{caption}</p>\n\n{text}')


def image(png, caption):
    """A figure with its caption below it, as HTML that holds the picture itself.

    :param png: bytes of a PNG file
    """
    data = base64.b64encode(png).decode()
    with Image.open(io.BytesIO(png)) as opened:
        inches = opened.width / opened.info['dpi'][0]  # as large as it was drawn
    return (f'<figure><img src="data:image/png;base64,{data}" width="{96 * inches:.0f}" alt="{html.escape(caption)}">'
            f'<figcaption>{as_text(caption)}</figcaption></figure>')


def drawn(figure, caption):
    """A figure of matplotlib with its caption below it.

    :param figure: it is closed
    """
    file = io.BytesIO()
    figure.savefig(file, format='png')
    plt.close(figure)
    return HTML(image(file.getvalue(), caption))


# --- Tables and figures ---


@message_in_its_place
def settings_table(folders):
    """The settings that are not the default in every run."""
    names, values = all_settings(folders)
    rows = [[key, *of_runs, str(DEFAULTS[key])] for key, of_runs in values.items()
            if key in DEFAULTS and set(of_runs) - {str(DEFAULTS[key]), UNUSED}]
    return table(markdown_table(['setting', *names, 'default'], rows),
                 'Settings that are not the default of <code>lab/train/settings.py</code> in all of these runs. '
                 f'{UNUSED}: this decoder does not use it.')


@message_in_its_place
def settings_compared(folders):
    """The settings in which the runs differ from each other."""
    names, values = all_settings(folders)
    rows = [[key, *of_runs] for key, of_runs in values.items() if len(set(of_runs) - {UNUSED}) > 1]
    return table(markdown_table(['setting', *names], rows),
                 'Where the compared runs differ: settings, a loss or an optimizer of your own, and the code, of which '
                 'the table shows a fingerprint. All else is the same.')


def all_settings(folders):
    """:return: names of the trained runs; dict setting -> list of its value in each of them, str"""
    runs = [run for run in read_runs(folders) if run['settings']]
    if not runs:
        raise Missing('the settings of these runs are in their checkpoints, which are not here: run the training '
                      'notebooks again, or put the `.pth.tar` files back')
    names, values = [run['name'] for run in runs], {}
    for key, default in {**DEFAULTS, **OF_CODE}.items():
        if key not in NOT_SHOWN:
            values[key] = [UNUSED if key in NOT_USED.get(run['seeds'][0]['model'], ())
                           else str(run['settings'].get(key, default)) for run in runs]
    return names, values


@message_in_its_place
def learning_curves(folder):
    """Loss, top-5 accuracy and BLEU-4 per epoch of all decoders of a run folder."""
    histories = read_histories(folder)
    if not histories:
        raise Missing(f'{folder} has no learning curves: run `train_rnn.ipynb` and `train_attention.ipynb`')
    return drawn(plot_history(histories), 'Learning curves. The star is the epoch that was kept.')


@message_in_its_place
def bleu_by_beam(folder):
    """A table of the scores for each beam size; trained decoders that were not tested are named below it."""
    text = bleu_table([run['seeds'][0] for run in read_runs(folder)])
    for name in read_histories(folder):
        if not tests_of(Path(folder), name):
            text += '\n\n' + note(f'{label(name)} is trained but not tested: run `test.ipynb` with it in `decoders`')
    return table(text, 'Scores on the test split for each beam size. Seconds: for captioning the whole split.')


@message_in_its_place
def bleu_figure(folder):
    """Scores and words per caption against beam size, as curves."""
    return drawn(plot_bleu([run['seeds'][0] for run in read_runs(folder)]),
                 'Scores on the test split, and words per caption, against beam size.')


@message_in_its_place
def captions(folder, picture):
    """What each model says of a picture; of a test picture also what people say.

    :param picture: the name that ``caption.ipynb`` printed before its captions, such as 'test0'
    """
    saved = read_caption(folder, picture)
    rows = [[label(name), caption] for name, caption in saved['captions'].items()]
    if re.fullmatch(r'test\d+', picture):
        tested = [run['seeds'][0]['captions'][int(picture[4:])] for run in read_runs(folder)]
        people = dict.fromkeys(sentence(tokens) for caption in tested for tokens in caption['references'])
        rows += [['' if i else 'people', text] for i, text in enumerate(people)]  # in each of the languages
    return table(markdown_table(['', f'caption of {picture}'], rows, align=':---'),
                 f'What is said of the picture, the models with beam {saved["beam_size"]}.')


@message_in_its_place
def attention_maps(folder, picture):
    """Where each decoder with attention looked for each word of its caption."""
    files = {label(name): f'attention_{picture}.png' if name == 'Attention' else f'attention_{picture}_{name}.png'
             for name in read_caption(folder, picture)['captions']}  # the names that caption.ipynb gives them
    return saved_figures(folder, files, f'{{}}, {picture}: where it looked just before each word. Each map has its own '
                                        'scale. p: probability of the word; peak: greatest weight.',
                         f'{picture} has no attention maps: run `caption.ipynb` with Attention in `decoders`')


def read_caption(folder, picture):
    """What ``caption.ipynb`` has saved of a picture: a dict of ``beam_size`` and ``captions`` by decoder."""
    path = Path(folder) / f'caption_{picture}.json'
    if not path.exists():
        there = ', '.join(sorted(other.stem.removeprefix('caption_') for other in path.parent.glob('caption_*.json')))
        raise Missing(f'{picture} has no caption in {folder}: run `caption.ipynb` with it in `pictures`'
                      + f', or take one of {there}' * bool(there))
    return read_json(path, AGAIN)


@message_in_its_place
def curves_compared(folders):
    """Validation loss, top-5 accuracy and BLEU-4 per epoch of all runs of these folders."""
    runs = [run for run in read_runs(folders) if run['seeds'][0].get('history')]
    histories = {run['name']: [seed['history'] for seed in run['seeds']] for run in runs}
    begins = {run['name']: [seed.get('begins', (0, None)) for seed in run['seeds']] for run in runs}
    return drawn(plot_history(histories, begins, training=False),
                 'Learning curves of the compared runs, on the validation split.')


@message_in_its_place
def scores_compared(folders):
    """Parameters, test scores and training time of all runs of these folders; several seeds as mean ± deviation."""
    runs = read_runs(folders)
    others = [name for name in all_scores(runs) if not name.startswith('BLEU-')]
    return table(score_table(runs, 'run', others, 'seeds', [str(len(run['seeds'])) for run in runs]),
                 'Test scores of the compared runs, mean ± standard deviation over the seeds. '
                 'Minutes: of one training.')


@message_in_its_place
def decoders_compared(folder):
    """Parameters, training time and test scores of the decoders; of the shapes also how many captions are right."""
    runs = read_runs(folder)
    path = Path(folder) / 'test_truth.json'
    truth = {name: found for name, found in read_json(path, AGAIN).items() if found} if path.exists() else {}
    scores = ['BLEU-4', *(name for name in all_scores(runs) if not name.startswith('BLEU-'))]
    rows = []
    for run in runs:
        result, = run['seeds']
        score, = (row for row in result['scores'] if row['beam_size'] == result['captions_beam_size'])
        row = [run['name'], f"{result['parameters']:,}", f"{result['train_seconds']:.0f}", str(score['beam_size']),
               *(f'{score[name]:.3f}' for name in scores)]
        if truth:
            found = truth.get(result['model'], dict(named=None, pointing=None))
            row += ['' if part is None else f'{part:.1%}' for part in (found['named'], found['pointing'])]
        rows.append(row)
    caption = 'The decoders on the test split.'
    if truth:
        chances = [found['chance'] for found in truth.values() if found['pointing'] is not None]
        by_chance = f', {chances[0]:.1%} by chance' if chances else ''
        caption += (' Named: captions that name the colour and shape of every object, and nothing else; '
                    'sizes and relations are not checked. '
                    f'Pointing: shape words whose greatest attention lies in the box of the object{by_chance}.')
    return table(markdown_table(['decoder', 'parameters', 'training, s', 'beam', *scores,
                                 *(['named', 'pointing'] if truth else [])], rows), caption)


@message_in_its_place
def where_it_looks(folder):
    """How often the attention for a word peaks in the box of the thing it names; nothing where things have no boxes."""
    if (Path(folder) / 'test_truth.json').exists() and not [*Path(folder).glob('figures/pointing_*.png')]:
        return None
    return saved_figures(
        folder, files_of_runs(folder, 'pointing'),
        '{}: how often the attention for a word peaks in the box of its object, and by chance.',
        f'{folder} has no figure of words and boxes, which needs attention and a data set with boxes: run `test.ipynb`')


@message_in_its_place
def caption_sheet(folder):
    """The best, typical and worst captions of each decoder."""
    return saved_figures(
        folder, files_of_runs(folder, 'captions'), '{}: its best, typical and worst captions, each with its BLEU-4 and '
                                                   'the reference that comes closest to it.',
        f'{folder} has no sheet of captions: run `test.ipynb`')


def files_of_runs(folder, kind):
    """Dict name of a run -> file of its figure, as ``test.ipynb`` calls it."""
    return {run['name']: f'{kind}_{run["seeds"][0]["model"]}.png' for run in read_runs(folder)}


def saved_figures(folder, files, caption, missing):
    """The figures that a notebook has saved.

    :param files: dict name for people -> file in the folder's ``figures``
    :param caption: with a place for the name
    :param missing: message where none of them is there
    """
    paths = {name: Path(folder) / 'figures' / file for name, file in files.items()}
    figures = [image(path.read_bytes(), caption.format(name)) for name, path in paths.items() if path.exists()]
    if not figures:
        raise Missing(missing)
    return HTML(''.join(figures))
