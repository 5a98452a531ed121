"""Small helpers shared by every step: atomic files, JSON, text, eval mode, averages."""

import errno
import html
import json
import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path):
    """Yield a temporary path beside ``path``; rename it over ``path`` when the block succeeds.

    A reader never sees a half-written file. If the block raises, the temporary file is removed
    and an older ``path`` stays as it was.

    :param path: the file to write; its folder is made if need be
    :raises OSError: the disk is full; the message names ``path``
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        reason = error.__context__ if isinstance(error, RuntimeError) else error  # torch.save hides it behind its own
        if getattr(reason, 'errno', None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(f'{path} cannot be written ({reason.strerror}): make room on the disk and run this again; an '
                      'older file of this name is unchanged') from error
    finally:
        with suppress(OSError):  # after an error, otherwise it is not there any more
            temporary.unlink()


def read_json(path, advice):
    """The content of a JSON file.

    :param advice: what to do about a file that is missing or damaged
    :raises ValueError: the file is missing, empty, cut or damaged; the message ends in the advice
    """
    try:
        return json.loads(Path(path).expanduser().read_text(encoding='utf-8'))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f'{path} is not there, empty, cut or damaged ({error}): {advice}') from error


def write_json(path, value, indent=1):
    """Write a JSON file, atomically. Chinese is there as Chinese."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=indent, ensure_ascii=False), encoding='utf-8')


def sentence(words):
    """Words as people write them: with spaces between them, but none beside a Chinese character."""
    return re.sub(r' (?=[\u3000-\u9fff\uff00-\uffef])|(?<=[\u3000-\u9fff\uff00-\uffef]) ', '', ' '.join(words))


def as_text(text):
    """Text of data (a caption, a name) for HTML or Markdown, which then show it as it is.

    Marks of HTML and Markdown become character references. MathJax looks for formulas where these are characters again,
    but only within one element, so what a formula begins with gets an element of its own.
    """
    text = html.escape(' '.join(str(text).split()), quote=False)
    marks = r'[`*|~[]|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])'  # not the _ in a_b, which marks nothing
    text = re.sub(marks, lambda match: f'&#{ord(match[0])};', text)
    return re.sub(r'[$\\]', lambda match: f'<span>&#{ord(match[0])};</span>', text)


def markdown_table(header, rows, align='---:'):
    """A Markdown table.

    :param header, rows: lists of str, text that is shown as it is
    :param align: of all columns but the first; numbers are on the right
    """
    lines = [map(as_text, header), [':---', *[align] * (len(header) - 1)], *(map(as_text, row) for row in rows)]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


@contextmanager
def evaluating(module):
    """Within the block ``module`` is in ``eval()``: dropout off, batch norm on its running statistics."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def monitored(epoch):
    """The score that decides in an epoch of a history (setting ``monitor``); the larger, the better."""
    name = epoch.get('monitor', 'greedy_cider' if epoch['train_top5'] is None else 'greedy_bleu4')  # older: without
    return -epoch[f'val_{name}'] if name in ('loss', 'cross_entropy') else epoch[f'val_{name}']


def best_epoch(history):
    """The epoch whose weights are in the best checkpoint: of the best score, and of epochs with the same score (0, at
    first) the one with the lowest loss.

    :param history: of ``solver.train``
    :return: its dict; an empty one of an empty history
    """
    return max(history, key=lambda epoch: (monitored(epoch), -epoch['val_loss']), default={})


def epoch_line(scores):
    """What is printed of an epoch.

    :param scores: an entry of a history, a dict
    :return: one line with its usual scores, and the one that decides if it is another
    """
    printed = dict(loss='LOSS', top5='TOP-5 ACCURACY', bleu4='BLEU-4', greedy_bleu4='GREEDY BLEU-4',
                   greedy_cider='CIDER')
    own = [name.removeprefix('val_') for name in scores if name.startswith('val_greedy_bleu4_')]  # of each language
    printed |= {name: name.upper().replace('_', ' ') for name in (*own, scores['monitor']) if name not in printed}
    values = ', '.join(f"{title} - {scores[f'val_{name}']:.3f}" for name, title in printed.items()
                       if f'val_{name}' in scores)
    return f" * {values}   (epoch {scores['epoch']}, {scores['seconds']:.0f} s)"


class AverageMeter:
    """Keeps the running average of a quantity, weighted by ``n``."""

    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def topk_accuracy(scores, targets, k):
    """Percentage of targets among the ``k`` highest scores.

    :param scores: (n, vocab_size) float
    :param targets: (n,) long
    :param k: how many of the best scores count
    :return: percent, 0 to 100, a 0-dim tensor
    """
    best = scores.topk(min(k, scores.size(1)), dim=1).indices
    return (best == targets.unsqueeze(1)).any(dim=1).float().mean() * 100
