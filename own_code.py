"""The code of this folder that a class runs: a fingerprint of its source, and whether a TODO in it is still open."""

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
SEEN = {}  # module -> the spec that it was loaded by, its source at that time
DEFINITIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
EVERYTHING = '*'
PLAIN = int, float, complex, str, bytes, type(None)  # bool is an int


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
    local variables do. What a notebook or another file has put in the place of a function, a method or a number counts
    as it is there (of a notebook's: as bytecode, with what it names). Not seen: what a call within a function puts into
    a list or a dict, such as a registry that a decorator fills.

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
        texts, named = replaced(module, name)
        for place, text in texts.items():
            found[module, place] = text
        waiting += named
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


def edited():
    """Files of this folder that hold other code by now than when they were loaded; comments do not count."""
    found = []
    for module in [name for name in SEEN if name in sys.modules]:
        path, before = path_of(module), source_of(module)
        now = path.read_bytes() if path else before
        try:
            same = now == before or [s.text for s in parsed(module, now)] == [s.text for s in parsed(module, before)]
        except SyntaxError:  # somebody is writing
            same = False
        found += [] if same else [path.name]
    return sorted(found)


def source_of(module):
    """What the file of a module says, or said when it was loaded, in bytes; empty if it is not of this folder."""
    spec, path = getattr(sys.modules.get(module), '__spec__', None), path_of(module)
    if path is None:
        return b''
    if spec is None:
        return path.read_bytes()
    seen, source = SEEN.get(module, (None, b''))
    # a module that is loaded again has another spec; IPython's autoreload lays new code into the old functions
    if seen is not spec or not all(spelled(function.__code__) in spellings(source) for function in loaded(module)):
        SEEN[module] = spec, path.read_bytes()
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
    tree = ast.parse(source, filename=str(path_of(module)))
    tree.body = [line for line in tree.body if not is_main(line)]
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


def is_main(line):
    """Whether it is ``if __name__ == '__main__'``, which an import passes over."""
    return isinstance(line, ast.If) and not line.orelse and ast.unparse(line.test) == "__name__ == '__main__'"


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
    try:
        return importlib.util.resolve_name('.' * node.level + (node.module or ''), package)
    except ImportError:  # beyond this folder, as Python would find
        return ''


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
    """What a notebook or another file has put in the place of a function, a method or a number of this folder.

    :return: dict place -> text, and a list of (module, name) that it is made of in this folder
    """
    texts, named = {}, []
    if path_of(module) is None or module not in sys.modules:
        return texts, named
    thing = getattr(sys.modules[module], name, None)
    members = {name: thing}
    if inspect.isclass(thing) and thing.__module__ != '__main__':
        members |= vars(thing)
    for place, member in members.items():
        functions = functions_in(member)
        if '__main__' in [home_of(one) for one in (member, *functions)]:
            lines, others = of_notebook(member)
            texts[f'{name}.{place}'] = '\n'.join(lines)
            named += others
        for function in functions:
            named.append((home_of(function), function.__qualname__.partition('.')[0]))
            if home_of(function) == module and is_of_file(function) \
                    and spelled(function.__code__) not in spellings(source_of(module)):
                texts[f'{name}.{place}'] = spelled(function.__code__)
    if name in numbers(module, source_of(module)) and isinstance(thing, PLAIN) \
            and thing != numbers(module, source_of(module))[name]:
        texts[f'{name} is'] = repr(thing)
    return texts, named


@cache
def numbers(module, source):
    """What names at the top of a module are plain values, as its source says: dict name -> value."""
    tree = ast.parse(source)
    changing = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}  # counters
    found = {}
    for line in tree.body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            found[line.targets[0].id] = line.value.value if isinstance(line.value, ast.Constant) else ...
    return {name: value for name, value in found.items() if value is not ... and name not in changing}


def of_notebook(thing):
    """What a notebook's function or class says, and what it names: texts, and a list of (module, name) of this folder.

    As bytecode: the source of what was typed into a console is nowhere.
    """
    texts, named, done, waiting = [], [], set(), [thing]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, PLAIN):
            texts.append(repr(thing))
            continue
        if id(thing) in done:
            continue
        done.add(id(thing))
        if home_of(thing) and path_of(home_of(thing)):
            named.append((home_of(thing), thing.__qualname__.partition('.')[0]))
        if isinstance(thing, (tuple, list)):
            waiting += thing
        elif inspect.isclass(thing) and home_of(thing) == '__main__':
            texts += [f'{thing.__name__}.{key}' for key in vars(thing) if not key.startswith('__')]
            waiting += [*thing.__bases__, *(value for key, value in vars(thing).items()
                                            if not isinstance(value, PLAIN) or not key.startswith('__'))]
        elif isinstance(thing, partial):
            waiting += [*thing.args, *thing.keywords, *thing.keywords.values()]
        for function in functions_in(thing):
            if home_of(function) != '__main__':
                continue
            texts.append(spelled(function.__code__))
            waiting += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            waiting += [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
            names = names_of(function.__code__)
            for value in (function.__globals__[name] for name in names if name in function.__globals__):
                if isinstance(value, ModuleType):
                    named += [(value.__name__, name) for name in names if path_of(value.__name__)]
                else:
                    waiting.append(value)
    return texts, named


def functions_in(thing):
    """The functions that a member of a module or a class is made of: a wrapper and what it wraps, say."""
    found, waiting = [], [thing]
    while waiting:
        thing = waiting.pop()
        if inspect.isfunction(thing):
            found.append(thing)
        if inspect.isfunction(thing) or isinstance(thing, (staticmethod, classmethod, property, partial, CACHED)):
            waiting += [part for name in ('__func__', '__wrapped__', 'fget', 'fset', 'func')
                        if (part := getattr(thing, name, None)) is not None]
    return found


CACHED = type(cache(len))


def loaded(module):
    """Functions and methods of a module that its file holds, as they are now."""
    things = list(vars(sys.modules[module]).values())
    things += [value for thing in things if inspect.isclass(thing) and thing.__module__ == module
               for value in list(vars(thing).values())]
    return [function for thing in things for function in functions_in(thing)
            if home_of(function) == module and is_of_file(function)]


def home_of(thing):
    """The module that a function or a class is defined in; None for other things."""
    if inspect.isfunction(thing):
        return thing.__globals__.get('__name__')  # a wrapper's __module__ is what it wraps
    return thing.__module__ if inspect.isclass(thing) else None


def is_of_file(function):
    return not function.__code__.co_filename.startswith('<')  # as a dataclass's __init__ is


@cache
def spellings(source):
    """:func:`spelled` of all code of a module's source"""
    found, waiting = set(), [compile(source, 'module', 'exec')]
    while waiting:
        code = waiting.pop()
        found.add(spelled(code))
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return found


@cache
def spelled(code):
    """Bytecode and what belongs to it, as text; on what line it stands does not count."""
    consts = [spelled(one) if isinstance(one, CodeType) else
              sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one) for one in code.co_consts]
    return repr((code.co_name, code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars))


def names_of(code):
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in names_of(one)]
    return list(dict.fromkeys([*code.co_names, *inner]))
