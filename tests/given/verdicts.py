"""A verdict in one sentence, as the checks of the lab's first TODOs give it: expected, came, and the likely cause."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch


class Value(NamedTuple):
    """What is right, and known mistakes: a sentence -> what would come out then; tensors, or numbers."""

    right: Any
    mistakes: dict


@torch.no_grad()
def by_hand(name, *arguments):
    """What an equation gives: of ``papers.py``, or in a bonus task of the numbers that were stored.

    :return: dict part -> :class:`Value`
    """
    stored = Path(__file__).with_name('expected.json')
    if stored.exists():
        found = json.loads(stored.read_text(encoding='utf-8'))[' '.join([name, *arguments])]
        return {part: Value(*value) for part, value in found.items()}
    import papers
    return getattr(papers, name)(*arguments)


def same(found, expected, where, shape, cause, mistakes=None, tolerance=1e-10):
    """Stop the test unless ``found`` is ``expected``.

    :param found, expected: tensors, or numbers; ``expected`` may be a :class:`Value`, which has its ``mistakes``
    :param where: such as 'TODO 7, DecoderWithAdaptiveAttention.attend: alpha'
    :param shape: names of the dimensions, for the message
    :param cause: the likely cause if it is none of these:
    :param mistakes: known ones: a sentence -> what would come out then
    :param tolerance: relative and absolute
    """
    if isinstance(expected, Value):
        expected, mistakes = expected
    found, expected = as_array(found), as_array(expected)
    known = {sentence: as_array(wrong) for sentence, wrong in (mistakes or {}).items()}
    for sentence, wrong in known.items():  # one that gives the same would be no mistake
        assert not close(wrong, expected, 3 * tolerance), sentence
    if close(found, expected, tolerance):
        return
    if found.shape != expected.shape:
        pytest.fail(f'{where}: expected shape {expected.shape}{f" = ({shape})" if shape else ""}; here it is '
                    f'{found.shape}. Likely cause: a dimension too many, too few or in another place.', pytrace=False)
    far = ~np.isclose(found, expected, tolerance, tolerance)
    place = np.unravel_index(np.abs(np.nan_to_num(found, nan=1e9) - expected).argmax(), expected.shape)
    index = f"[{', '.join(map(str, place))}]" if place else ''
    which = [sentence for sentence, wrong in known.items() if close(found, wrong, tolerance)]
    why = f'Known mistake: {"; or: ".join(which)}' if which else f'Likely cause: {cause}'
    pytest.fail(f'{where}{index}: expected {expected[place]:.6g}; here {found[place]:.6g}, and {far.mean():.0%} of its '
                f'entries differ. {why}.', pytrace=False)


def check(condition, where, expected, came, cause):
    """Stop the test unless the condition holds; what it says is as of :func:`same`."""
    if not condition:
        pytest.fail(f'{where}: expected {expected}; here {came}. Likely cause: {cause}.', pytrace=False)


def called(where, function, **given):
    """What comes back, if what was handed over stays as it is.

    :param where: as of :func:`same`; ``given``: tensors or None, in the order of the parameters
    """
    before = {name: value.detach().clone() for name, value in given.items() if value is not None}
    found = function(*given.values())
    for name, value in before.items():
        check(torch.equal(given[name], value), where, f'that {name} stays as it is', 'it is changed in place',
              f'add_(), += or the like on {name}, which is used again afterwards')
    return found


def as_array(value):
    return value.detach().cpu().double().numpy() if torch.is_tensor(value) else np.asarray(value, dtype=float)


def close(one, other, tolerance):
    return one.shape == other.shape and np.allclose(one, other, tolerance, tolerance)
