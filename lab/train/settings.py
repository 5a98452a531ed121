"""Settings with types: one check for all of them, and one sentence on what is wrong."""

import difflib
import math
import os
from dataclasses import asdict
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Union, get_args, get_origin, get_type_hints


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _first_and_last(value, most):
    values = value if isinstance(value, (tuple, list)) else (value, value)
    return len(values) == 2 and all(_number(v) and 0 <= v <= most and v < math.inf for v in values)


# A kind of setting: its type, what a value must fulfil, and that in words
Flag = Annotated[bool, lambda v: isinstance(v, bool), 'True or False']
Count = Annotated[int, lambda v: _whole(v) and v >= 1, 'a whole number of at least 1']
Seed = Annotated[int, lambda v: _whole(v) and 0 <= v < 2 ** 32, 'a whole number from 0 to below 2 ** 32']
Rate = Annotated[float, lambda v: _number(v) and 0 < v < math.inf, 'a number above 0']
Weight = Annotated[float, lambda v: _number(v) and 0 <= v < math.inf, 'a number of at least 0']
Share = Annotated[float, lambda v: _number(v) and 0 <= v < 1, 'a number from 0 to below 1']
Text = Annotated[str, lambda v: isinstance(v, (str, Path)), 'a name or a path']
Options = Annotated[dict, lambda v: isinstance(v, dict), 'a dict']
# one number, or two between which it changes linearly from the first to the last epoch
WeightPerEpoch = Annotated[float | tuple, lambda v: _first_and_last(v, math.inf),
                           'a number of at least 0, or two: in the first and in the last epoch']
SharePerEpoch = Annotated[float | tuple, lambda v: _first_and_last(v, 1),
                          'a number from 0 to 1, or two: in the first and in the last epoch']


def complete(cfg, *kinds):
    """Fill in the defaults and check every value against its type.

    :param cfg: dict of settings
    :param kinds: dataclasses with all settings that there are
    :return: complete dict; paths are strings
    :raises ValueError: an unknown setting, or an impossible value; the message names it
    """
    defaults = {name: value for kind in kinds for name, value in asdict(kind()).items()}
    for name in cfg:
        if name not in defaults:
            nearest = difflib.get_close_matches(str(name), defaults, n=1, cutoff=0.7)
            hint = f'did you mean {nearest[0]!r}?' if nearest else f'known are {", ".join(defaults)}'
            raise ValueError(f'unknown setting {name!r}; {hint}')
    cfg = {**defaults, **{name: plain(value) for name, value in cfg.items()}}
    for kind in kinds:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            or_none = get_origin(hint) in (Union, UnionType)
            if or_none and cfg[name] is None:
                continue
            _, fits, wanted = get_args(next(part for part in get_args(hint) if part is not NoneType)
                                       if or_none else hint)
            if not fits(cfg[name]):
                raise ValueError(f'setting {name!r} is {cfg[name]!r}; it must be {wanted}{", or None" * or_none}')
    return cfg


def plain(value):
    """Numbers and arrays of numpy as Python's own, paths as strings and without ``~``: a checkpoint holds no others."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    if hasattr(value, 'tolist'):
        return value.tolist()
    return os.path.expanduser(value) if isinstance(value, (str, Path)) else value


def in_epoch(setting, epoch, epochs):
    """The value of a ``WeightPerEpoch`` or ``SharePerEpoch`` in an epoch (from 1 on)."""
    first, last = setting if isinstance(setting, (tuple, list)) else (setting, setting)
    return first + (last - first) * (epoch - 1) / max(epochs - 1, 1)
