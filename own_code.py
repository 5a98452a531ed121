"""The code of this folder that a class runs: a fingerprint of it, and whether a TODO in it is still open."""

import hashlib
import inspect
import re
import sys
import types
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PLAIN = (int, float, str, bytes, bool, tuple, type(None))


def code_digest(*things):
    """Fingerprint of what classes and functions run, 16 hexadecimal digits.

    It holds what is loaded, not what the files say meanwhile; comments, docstrings and line numbers do not count.
    Beside the things themselves: base classes, and what they name of this folder's files, and so on.
    """
    found, waiting = {}, list(things)
    while waiting:
        thing = waiting.pop()
        name = f'{thing.__module__}.{thing.__qualname__}'
        if name in found or not is_own(thing):
            continue
        if inspect.isclass(thing):
            values = {key: value for key, value in vars(thing).items() if isinstance(value, PLAIN) and key[:2] != '__'}
            found[name] = sorted(values.items())
            waiting += [*thing.__mro__[1:], *functions_of(thing)]
        else:
            used = named(thing)
            plain = {key: value for key, value in used.items() if isinstance(value, PLAIN)}
            found[name] = described(thing.__code__, thing.__doc__), *map(written, (
                thing.__defaults__, thing.__kwdefaults__)), sorted(plain.items())
            waiting += [value for value in used.values() if inspect.isclass(value) or inspect.isfunction(value)]
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def open_todo(*things):
    """What the first TODO says that is still open; None: all are done.

    :param things: functions, and classes: of these the methods that count, where one takes another's place
    """
    for thing in things:
        members = [inspect.getattr_static(thing, name) for name in dir(thing)] if inspect.isclass(thing) else [thing]
        for function in filter(is_own, map(inside, members)):
            for text in constants(function.__code__):
                if isinstance(text, str) and re.match(r'TODO \d+: \S+ is still to do', text):
                    return text
    return None


def inside(member):
    """The function of a method, a property or the like; None if there is none."""
    member = getattr(member, '__func__', None) or getattr(member, 'fget', None) or getattr(member, 'func', member)
    return inspect.unwrap(member) if inspect.isfunction(member) else None


def functions_of(kind):
    return [function for function in map(inside, vars(kind).values()) if function]


def is_own(thing):
    """Whether a class, a function or a module is of a file in this folder."""
    module = thing if inspect.ismodule(thing) else sys.modules.get(getattr(thing, '__module__', None))
    file = getattr(module, '__file__', None)
    return bool(file) and Path(file).resolve().parent == FOLDER


def named(function):
    """What a function names of its module, and of this folder's modules: name -> value."""
    names = {name for code in codes(function.__code__) for name in code.co_names}
    modules = [value for name in names if inspect.ismodule(value := function.__globals__.get(name)) and is_own(value)]
    spaces = [function.__globals__, *map(vars, modules)]
    return {name: space[name] for space in spaces for name in names if name in space}


def codes(code):
    """A code object and those inside of it."""
    return [code, *(inner for part in code.co_consts if isinstance(part, types.CodeType) for inner in codes(part))]


def constants(code):
    return [part for inner in codes(code) for part in inner.co_consts]


def described(code, docstring=None):
    """What a code object does, the same in every process."""
    return code.co_code.hex(), code.co_names, [written(part) for part in code.co_consts if docstring is None
                                               or part != docstring]


def written(value):
    """A value as text that is the same in every process."""
    if isinstance(value, types.CodeType):
        return described(value)
    if isinstance(value, dict):
        return written(tuple(value.items()))
    if isinstance(value, (tuple, list)):
        return [written(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    return repr(value) if isinstance(value, (*PLAIN, range, complex, type(...))) else type(value).__name__
