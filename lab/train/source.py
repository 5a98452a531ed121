"""Has the code changed? A fingerprint of the source that a training runs, and whether a TODO in it is still open."""

import ast
import hashlib
import inspect
import re
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ('data', 'decode', 'experiments', 'more', 'train')  # of lab; figures and forms change no training
LOADED = {}  # module -> the spec that it was loaded by, its source at that time


def source_of(module):
    """What a module's file said when it was loaded, in bytes: the file may have been edited since.

    :param module: its name, such as 'lab.train.source'
    """
    spec = getattr(sys.modules.get(module), '__spec__', None)
    before, source = LOADED.get(module, (None, None))
    reloaded = before is not None and before is not spec  # each time by another spec
    if source is None or reloaded:
        source = Path(find_spec(module).origin).read_bytes()
    LOADED[module] = spec, source
    return source


def modules_of(decoder=None):
    """Names of the modules whose code a training may run.

    :param decoder: the setting, such as 'my_decoder.MyDecoder'
    """
    given = ['.'.join(path.relative_to(ROOT).with_suffix('').parts) for room in ROOMS
             for path in (ROOT / 'lab' / room).glob('*.py') if path.stem != '__init__']
    own = [decoder.rpartition('.')[0]] if decoder else []
    return sorted({'models', 'datasets', 'solver', 'utils', *given, *own})


def code_digest(decoder=None):
    """Fingerprint of all code of this lab that a training may run; comments and line breaks do not count.

    :param decoder: the setting, such as 'my_decoder.MyDecoder'
    :return: 16 hexadecimal digits
    """
    code = [(module, plain(source_of(module))) for module in modules_of(decoder)]
    return hashlib.sha256(repr(code).encode()).hexdigest()[:16]


def plain(source):
    """Source code without comments and line breaks."""
    return ast.unparse(ast.parse(source))


def class_source(kind):
    """A class of this lab as source code, without comments, as it was when it was loaded."""
    tree = ast.parse(source_of(kind.__module__))
    return next(ast.unparse(node) for node in tree.body if getattr(node, 'name', None) == kind.__name__)


def edited(decoder=None):
    """Names of the files that hold other code by now than when they were loaded."""
    paths = {module: Path(find_spec(module).origin) for module in modules_of(decoder)}
    return [path.name for module, path in paths.items() if changed(source_of(module), path.read_bytes())]


def changed(before, now):
    try:
        return before != now and plain(before) != plain(now)
    except SyntaxError:  # somebody is writing
        return True


def open_todo(*functions):
    """What the first TODO says that is still open in these functions; None: all are done."""
    for function in functions:
        for text in inspect.unwrap(function).__code__.co_consts:
            if isinstance(text, str) and re.match(r'TODO \d+: \S+ ', text):
                return text
    return None


for _module in modules_of():  # now, while they are being loaded: a notebook's kernel lives for hours
    source_of(_module)
