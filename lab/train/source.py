"""Has the code changed? A fingerprint of the source that a training or a test runs."""

import ast
import hashlib
import inspect
import re
import textwrap
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What decides what comes out of a training; of the metrics the one of monitor counts, see resume.fingerprints
TRAINS = ['models', 'datasets', 'solver', 'utils', 'lab.data.encoders', 'lab.data.vocabulary',
          'lab.decode.greedy_search', 'lab.decode.bleu', 'lab.decode.cider', 'lab.decode.monitor',
          *(f'lab.train.{path.stem}' for path in (ROOT / 'lab/train').glob('[!_]*.py'))]
# those that a setting brings in
OF_SETTINGS = {'self_critical': 'lab.more.self_critical', 'word_vectors': 'lab.more.word_vectors',
               'embed_dropout': 'lab.more.word_vectors'}
# and those that only a test of it needs
TESTS = ['lab.decode.beam_search', 'lab.decode.evaluate', 'lab.decode.metrics', 'lab.decode.coco_metrics',
         'lab.more.ensembles']


@cache
def source_of(module):
    """What a module's file said when this was first asked, as it was loaded: the file may have been edited since."""
    return Path(find_spec(module).origin).read_bytes()


def modules_of(cfg, tests=False):
    """Names of the modules that a training with these settings runs; with ``tests`` a test, too."""
    own = with_imports(cfg['decoder'].rpartition('.')[0]) if cfg.get('decoder') else set()
    brought_in = (module for name, module in OF_SETTINGS.items() if cfg.get(name))
    return sorted({*TRAINS, *own, *brought_in, *(TESTS if tests else [])})


def with_imports(module):
    """A decoder's module, and those of lab.more that it builds on."""
    names = re.findall(rb'^(?:from|import) (lab\.more\.\w+)', source_of(module), re.MULTILINE)
    return {module}.union(*(with_imports(name.decode()) for name in names))


def code_digest(cfg, tests=False):
    """Fingerprint of :func:`modules_of` a training; comments, docstrings and line breaks do not count."""
    code = [(module, without_comments(source_of(module))) for module in modules_of(cfg, tests)]
    return hashlib.sha256(repr(code).encode()).hexdigest()[:16]


def without_comments(source):
    """Source code without comments, docstrings and line breaks."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def source_of_function(function):
    """The source of a function or a class, or the bytecode of a function that was typed into a console."""
    if isinstance(function, partial):
        return f'{source_of_function(function.func)} {function.args} {function.keywords}'
    if not (inspect.isroutine(function) or inspect.isclass(function)):  # a loss that is a module
        function = type(function)
    try:
        source = inspect.getsource(function)
        return without_comments(textwrap.dedent(source))
    except SyntaxError:  # lines around a lambda
        return source
    except (OSError, TypeError):  # what has neither source nor bytecode goes by its name
        return function.__code__.co_code.hex() if hasattr(function, '__code__') else ''


def helpers_of(function, found=()):
    """The functions of its file that a function calls, with those that these call."""
    names = function.__code__.co_names if inspect.isfunction(function) else ()
    for name in names:
        other = function.__globals__.get(name)
        if inspect.isfunction(other) and other.__module__ == function.__module__ and other not in found:
            found = helpers_of(other, [*found, other])
    return found


def function_digest(function):
    """Name and fingerprint of a loss, a metric or an optimizer of your own, such as 'focal 1f3a20b4'."""
    name = getattr(function, '__name__', type(function).__name__)
    all_code = [function, *helpers_of(function.func if isinstance(function, partial) else function)]
    return f'{name} {hashlib.sha256(repr([*map(source_of_function, all_code)]).encode()).hexdigest()[:8]}'


def class_source(kind):
    """The source code that a class runs, without comments and docstrings.

    Of a class of this lab it is the class, as it was when it was loaded; of one in a file of your own the whole file,
    whose functions it may call; of one in a notebook its methods.
    """
    if kind.__module__ == '__main__':
        return ''.join(source_of_function(value) for value in vars(kind).values() if inspect.isfunction(value))
    source = source_of(kind.__module__)
    if kind.__module__ not in TRAINS:
        return without_comments(source)
    return next(without_comments(ast.unparse(node)) for node in ast.parse(source).body
                if getattr(node, 'name', None) == kind.__name__)


def edited(cfg):
    """Names of the files that have been edited since they were loaded."""
    paths = {module: Path(find_spec(module).origin) for module in modules_of(cfg, tests=True)}
    return [path.name for module, path in paths.items() if source_of(module) != path.read_bytes()]


# now, while they are being loaded: a notebook's kernel lives for hours
for _module in modules_of(dict.fromkeys(OF_SETTINGS, True), tests=True):
    source_of(_module)
