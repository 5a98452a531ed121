"""The code of this folder that a class runs: a fingerprint of its source, and whether a TODO in it is still open."""

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
SEEN = {}  # module -> the spec that it was loaded by, its source at that time
DEFINITIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
EVERYTHING = '*'


class Statement(NamedTuple):
    """One at the top of a module.

    :ivar text: without comments and docstrings
    :ivar binds: names that it gives a value or changes; EVERYTHING of ``from module import *``
    :ivar uses: what it names, here or in another module of this folder: set of (module, name)
    """

    text: str
    binds: set
    uses: set


def code_digest(*names):
    """Fingerprint of the code of classes and functions, and of what they name of this folder's files, and so on.

    It is of the sources as they were when they were loaded; comments, docstrings and line breaks do not count, names of
    local variables do. A method that a notebook has replaced counts as it is there.

    :param names: such as 'models.DecoderWithRNN'
    :return: 16 hexadecimal digits, the same in every process
    """
    found, done, waiting = {}, set(), [tuple(name.rsplit('.', 1)) for name in names]
    while waiting:
        module, name = key = waiting.pop()
        if key in done:
            continue
        done.add(key)
        for number, statement in enumerate(statements(module)):
            of_star = EVERYTHING in statement.binds
            if name in statement.binds or name == EVERYTHING or of_star:
                found[module, number] = statement.text
                waiting += [(other, name) for other, _ in statement.uses] if of_star else statement.uses
        for place, source in replaced(module, name):
            found[module, place] = source
    order = sorted(found, key=lambda key: (key[0], isinstance(key[1], str), key[1]))
    return hashlib.sha256(repr([(key[0], found[key]) for key in order]).encode()).hexdigest()[:16]


def open_todo(*functions):
    """What the first TODO says that is still open in these functions; None: all are done."""
    for function in functions:
        for text in inspect.unwrap(function).__code__.co_consts:
            if isinstance(text, str) and re.match(r'TODO \d+: \S+ is still to do', text):
                return text
    return None


def remember_sources():
    """To be called when modules were loaded: a file may be edited while they stay as they were."""
    here = {path.stem for path in FOLDER.iterdir()}
    for module in list(sys.modules):
        if module.partition('.')[0] in here:
            source_of(module)


def source_of(module):
    """What the file of a module says, or said when it was loaded; '' if it is not of this folder."""
    spec, path = getattr(sys.modules.get(module), '__spec__', None), path_of(module)
    if path is None:
        return ''
    if spec is None:
        return path.read_text(encoding='utf-8')
    if SEEN.get(module, (None, ''))[0] is not spec:  # a module that is loaded again has another
        SEEN[module] = spec, path.read_text(encoding='utf-8')
    return SEEN[module][1]


def path_of(module):
    """The file in this folder, or below, that is imported by this name; None if there is none."""
    path = FOLDER.joinpath(*module.split('.'))
    return next((file for file in (path.parent / f'{path.name}.py', path / '__init__.py') if file.is_file()), None)


def statements(module):
    """:return: tuple of :class:`Statement`; empty if the module is not of this folder"""
    return parsed(module, source_of(module))


@cache
def parsed(module, source):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for part in ('body', 'orelse', 'finalbody'):
            if isinstance(inner := getattr(node, part, None), list):  # an expression's are no lists
                setattr(node, part, [line for line in inner if not is_text(line)])
    imported = {}  # name -> module of this folder
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported |= modules_of(node, module)
    return tuple(Statement(ast.unparse(node), binds(node), uses(node, module, imported))
                 for line in tree.body for node in one_by_one(line))


def one_by_one(node):
    """An import of several names as imports of one; other statements as they are."""
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def is_text(line):
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def modules_of(node, module):
    """Modules of this folder that an import statement gives a name: dict name -> module."""
    whole = [(alias.asname or alias.name.partition('.')[0], alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        whole = [(name, f'{origin(node, module)}.{inner}') for name, inner in whole]
    return {name: found for name, found in whole if path_of(found)}


def origin(node, module):
    """The module that ``from ... import`` reads from."""
    package = module if path_of(module).name == '__init__.py' else module.rpartition('.')[0]
    return importlib.util.resolve_name('.' * node.level + (node.module or ''), package)


def names_in(node):
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def binds(node):
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition('.')[0] for alias in node.names}
    if isinstance(node, ast.Assign):
        return set().union(*map(names_in, node.targets))
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        return names_in(node.target)
    # a call may change whatever it is given; if, for, try and with hold statements of their own
    inner = [part for part in ast.walk(node) if isinstance(part, (*DEFINITIONS, ast.Import, ast.ImportFrom))]
    return names_in(node).union(*map(binds, inner))


def uses(node, module, imported):
    found, attributes = set(), set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in imported:
            found.add((imported[part.value.id], part.attr))
            attributes.add(part.value)
        elif isinstance(part, ast.ImportFrom) and path_of(origin(part, module)):
            found |= {(origin(part, module), alias.name) for alias in part.names}
        elif isinstance(part, ast.Import):  # of one in a folder all counts
            found |= {(alias.name, EVERYTHING) for alias in part.names if '.' in alias.name and path_of(alias.name)}
        elif isinstance(part, ast.Name):
            found.add((module, part.id))
            if part.id in imported and part not in attributes:  # handed on as it is: anything may be taken from it
                found.add((imported[part.id], EVERYTHING))
    return found


def replaced(module, name):
    """What a notebook has put in the place of a function or a method of this folder: pairs of place and source."""
    thing = getattr(sys.modules.get(module), name, None)
    members = {name: thing} | (dict(vars(thing)) if inspect.isclass(thing) else {})
    for place, member in members.items():
        member = getattr(member, '__func__', member) if isinstance(member, (staticmethod, classmethod)) else member
        if inspect.isfunction(member) and member.__module__ == '__main__' and path_of(module):
            try:
                yield f'{name}.{place}', inspect.getsource(member)
            except OSError:  # typed into a console
                yield f'{name}.{place}', member.__code__.co_code.hex()

