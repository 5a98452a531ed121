"""Checks that several TODOs of a bonus task share."""

import numpy as np
import pytest
from bonus_requests import KINDS
from checks import check_gradients, check_not_seeded, check_probability

OTHER_CALLS = {  # what is different in them -> the likely cause if only these are wrong
    ' once more': 'a call changes what it is given in place (add_(), +=), or leaves something behind for the next one',
    ' of one caption': 'squeeze() without a dimension drops that of the batch as well',
    ' of one picture': 'squeeze() without a dimension drops that of the batch as well',
    ' with more cells': 'a number of cells is fixed',
    ' with pixels in a row': 'a grid with its pixels in a row already is not taken (flatten_pixels takes both)',
    ' with other keys': 'keys that are handed over are not taken as they are',
    ' in training': 'training makes a difference here: dropout in another place as well',
    ' after training': 'a call in training leaves something behind'}


def after(lab, *checks):
    """Skip this check while one of these, on which it builds, is not passed."""
    for check in checks:
        try:
            check(lab)
        except pytest.fail.Exception:
            pytest.skip(f'waits for TODO {lab.todo}: {check.__name__}')


def check_method(lab, name, method, gradients=True, **rules):
    """What a method gives back, called in every way.

    :param name: of the request
    :param rules: each output -> what it should be
    """
    answer = lab(name, method)
    for output, rule in rules.items():
        answer.same(output, rule=rule)
    for call in others(answer):
        cause = next((cause for part, cause in OTHER_CALLS.items() if call.endswith(part)), '')
        answer.same(call, cause=cause)
    check_not_seeded(answer)
    if gradients:
        check_gradients(answer)


def others(answer):
    return [name for name in answer.expected if not name.startswith('gradient of')]


def check_layers(lab, kind):
    """Every layer that the TODO lists is there, under its name and with its sizes, and does what such a layer does."""
    where = f'{KINDS[kind][1]}.__init__'
    answer = lab(f'{kind}_shapes', where)
    own = {name: tuple(shape.tolist()) for name, shape in answer.reply['arrays'].items()}
    wanted = {name: tuple(map(int, shape)) for name, (_, shape) in answer.expected.items()}
    for name in sorted(own.keys() | wanted.keys(), key=lambda name: name not in wanted):
        answer.require(own.get(name) == wanted.get(name), f'{name} of shape {wanted[name]}' if name in wanted else
                       f'no {name}', f'its shape is {own[name]}' if name in own else 'there is none',
                       'in and out exchanged, bias=False missing or out of place, or another name')
    answer = lab(f'{kind}_layers', where)
    answer.same(*(name for name in answer.expected if name != 'dropout'), cause='the layer is of another kind')
    check_probability(answer)


def check_dropout(lab, kind, method):
    """Dropout is of what goes into fc and nowhere else, and only in training."""
    answer = lab(f'{kind}_dropout', method)
    for name in answer.expected:
        everywhere = name.startswith('predictions in training')
        answer.same(name, rule='' if 'in training' not in name else
                    'dropout comes right before fc; when all is dropped, fc.bias is left' if everywhere else
                    'only what goes into fc is dropped; the state of the next step stays whole')
    answer, masks = lab(f'{kind}_masked', method), []
    size = answer.inputs.batch, answer.inputs.vocab_size
    for call in (' in training', ' in training once more'):
        width, came = answer.inputs.decoder_dim, answer[f'predictions{call}'].shape
        answer.require(came == answer['predictions'].shape == size, f'predictions of shape {size}', f'it is {came}')
        times = answer[f'predictions{call}'][:, :width] / answer['predictions'][:, :width]
        halved = (np.abs(times) < 1e-3) | (np.abs(times - 2) < 1e-2)
        answer.require(halved.all() and 0 < times.mean() < 2,
                       'a part of what goes into fc dropped and the rest doubled, with dropout=0.5',
                       'it is something else',
                       'dropout more than once, of another thing than what goes into fc, or not in training only')
        masks.append(times > 1)
    answer.require((masks[0] != masks[0][:1]).any() and (masks[0] != masks[1]).any(),
                   'other entries dropped for each caption and at each call', 'they are the same')


def check_whole(lab, kind, *requests):
    """``forward`` and beam search's steps, with all parts together."""
    for what in requests:
        answer = lab(f'{kind}_{what}', f'{KINDS[kind][1]}.forward')
        answer.same(*others(answer), cause='each part is right by itself: they treat sizes, words or states unlike, or '
                    'hand over something else than others take')
        check_gradients(answer)
