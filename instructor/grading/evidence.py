"""What was handed in, read in a process with limits (``limited.py``): the code, and what the notebooks left.

The latter is compared with itself: remarks for a person, never points.
"""

import base64
import hashlib
import io
import json
import math
import re
from pathlib import PurePosixPath

import torch

from instructor.grading.submissions import SubmissionError, read_submission
from lab.decode.bleu import bleu
from utils import best_epoch

NOTEBOOKS = ('train_rnn.ipynb', 'train_attention.ipynb', 'test.ipynb', 'caption.ipynb')
DECODERS = ('NoAttention', 'Attention')
NOTES = 20  # at most


def read(path):
    """
    :param path: of a submission
    :return: dict with ``code``, name -> bytes in base 64, ``digest`` of code and evidence, and ``notes``; or with
        ``error``, a sentence on why it cannot be graded
    """
    try:
        submission = read_submission(path)
        code, digest = submission.code(), hashlib.sha256()
    except (SubmissionError, OSError) as error:
        return {'error': str(error)}
    notes = submission.notes[:NOTES] + [f'and {len(submission.notes) - NOTES} more'] * (len(submission.notes) > NOTES)
    for name in sorted({*code, *submission.evidence()}):
        try:
            content = submission.files[name]()
        except (SubmissionError, OSError) as error:
            content = repr(error).encode()
            notes.append(str(error))
        digest.update(repr((name, hashlib.sha256(content).hexdigest())).encode())
    return {'code': {name: base64.b64encode(data).decode() for name, data in code.items()},
            'digest': digest.hexdigest(), 'notes': notes}


def look_at(path):
    """:func:`look` at the submission of a path."""
    return look(read_submission(path))


def look(submission):
    """
    :param submission: ``submissions.Submission``
    :return: list of remarks, one sentence each; empty if all agrees
    """
    remarks = []
    for name in NOTEBOOKS:
        remarks += [f'{name}: {remark}' for remark in guarded(notebook, submission, name)]
    for decoder in DECODERS:
        remarks += [f'{decoder}: {remark}' for remark in guarded(runs, submission, decoder)]
    if not any(PurePosixPath(path).match('report/*.html') for path in submission.files):
        remarks.append('report/report.html is missing')
    return remarks


def guarded(function, *arguments):
    """Whatever is strange about a file is a remark."""
    try:
        return function(*arguments)
    except Exception as error:
        return [f'cannot be read ({type(error).__name__}: {str(error)[:200]})']


def notebook(submission, name):
    if name not in submission.files:
        return ['missing']
    cells = [cell for cell in json.loads(submission.files[name]())['cells'] if cell['cell_type'] == 'code']
    if not any(cell.get('execution_count') for cell in cells):
        return ['was never run']
    errors = [output.get('ename', 'an error') for cell in cells for output in cell.get('outputs', [])
              if output.get('output_type') == 'error']
    return [f'stopped with {errors[0]}'] if errors else []


def runs(submission, decoder):
    """History, BLEU table, captions, checkpoint and figures of one decoder."""
    def find(pattern):
        return next((path for path in sorted(submission.files) if PurePosixPath(path).match(f'runs/*/{pattern}')), None)

    remarks = []
    history_path, test_path = find(f'history_{decoder}.json'), find(f'test_{decoder}.json')
    checkpoint_path = find(f'BEST_checkpoint_{decoder}.pth.tar')
    history = read_json(submission, history_path) if history_path else None
    tested = read_json(submission, test_path) if test_path else None
    if history is None:
        remarks.append('no history of a training')
    if tested is None:
        remarks.append('no results of test.ipynb')
    else:
        remarks += guarded(scores, tested)
        if history is not None:
            remarks += guarded(epochs, history, tested)
    if checkpoint_path:
        remarks += guarded(checkpoint, submission.files[checkpoint_path](), history, tested)
    if find(f'figures/history_{decoder}.png') is None:
        remarks.append('no figure of the learning curves')
    return remarks


def read_json(submission, path):
    return json.loads(submission.files[path]())


def scores(tested):
    """BLEU once more, from the captions that were saved."""
    captions = tested['captions']
    found = bleu([[list(map(str, r)) for r in c['references']] for c in captions],
                 [list(map(str, c['caption'])) for c in captions])
    said = next(score for score in tested['scores'] if score['beam_size'] == tested['captions_beam_size'])
    remarks = [f'{name} of the saved captions is {value:.4f}, the table says {said[name]:.4f}'
               for name, value in found.items() if not math.isclose(value, said[name], abs_tol=1e-6)]
    names = [c['name'] for c in captions]
    if len(set(names)) < len(names):
        remarks.append('some pictures are among the saved captions more than once')
    return remarks


def epochs(history, tested):
    remarks = []
    best = best_epoch(history)['epoch']
    if tested['epochs'] != len(history):
        remarks.append(f"the history has {len(history)} epochs, the test says {tested['epochs']}")
    if tested['best_epoch'] != best:
        remarks.append(f"the best epoch of the history is {best}, the test says {tested['best_epoch']}")
    if [epoch['epoch'] for epoch in history] != list(range(1, len(history) + 1)):
        remarks.append('the epochs of the history are not 1, 2, 3, ...')
    return remarks


def checkpoint(data, history, tested):
    """Vocabulary, sizes and history of a checkpoint; read without running anything in it."""
    try:
        state = torch.load(io.BytesIO(data), map_location='cpu', weights_only=True)
        decoder, words, settings = state['decoder'], state['word_map'], state['settings']
    except Exception as error:
        reason = re.sub(r'\s+', ' ', str(error))[:120]
        return [f'the checkpoint is not one of this lab ({type(error).__name__}: {reason})']
    remarks = []
    rows = decoder['embedding.weight'].shape[0]
    if rows != len(words) or decoder['fc.weight'].shape[0] != len(words):
        remarks.append(f'the checkpoint has a vocabulary of {len(words)} words and layers for {rows}')
    if decoder['embedding.weight'].shape[1] != settings['embed_dim']:
        remarks.append("the checkpoint's word vectors are not as long as its settings say")
    if decoder['fc.weight'].shape[1] != settings['decoder_dim']:
        remarks.append("the checkpoint's hidden state is not as large as its settings say")
    if tested is not None:
        said = {word for c in tested['captions'] for word in c['caption']}
        unknown = sorted(map(str, said - set(words)))
        if unknown:
            remarks.append(f'the saved captions hold words that the checkpoint does not know: {", ".join(unknown[:5])}')
        # batch norm's running statistics are no parameters
        count = sum(t.numel() for name, t in decoder.items() if 'running_' not in name and 'num_batches' not in name)
        if count != tested['parameters']:
            remarks.append(f"the checkpoint has {count:,} parameters, the test says {tested['parameters']:,}")
    if history is not None and state['history'] != history[:len(state['history'])]:
        remarks.append("the checkpoint's history is not the beginning of the history file")
    return remarks
