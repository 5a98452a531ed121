"""The student's ``models.py``, cut from the reference.

The reference ``instructor/models.py`` marks what students write with ``### BEGIN SOLUTION`` and
``### END SOLUTION``, right below a comment that starts with ``# TODO 3: Attention.forward`` and gives steps,
shapes and the equation. Cutting keeps the comment and puts one ``raise NotImplementedError`` in place of the
block. Run as a program, it writes the root ``models.py``; with ``--check`` it only compares.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

from utils import atomic_path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / 'instructor' / 'models.py'
# TODOs of the bonus task -> the file that holds them
BONUS = {6: 'lab/more/adaptive.py', 7: 'lab/more/adaptive.py', 8: 'lab/more/cells.py', 9: 'lab/more/bahdanau.py',
         10: 'lab/more/captionnet.py', 11: 'lab/more/decoder.py', 12: 'lab/more/self_critical.py',
         13: 'lab/more/ensembles.py', 14: 'lab/more/word_vectors.py'}
FIRST_OF_BONUS = {file: todo for todo, file in sorted(BONUS.items(), reverse=True)}  # file -> number of its first TODO
BEGIN, END = '### BEGIN SOLUTION', '### END SOLUTION'
TITLE = re.compile(r'^\s*# TODO (\d+): (\S+)$')


def student_source(reference, file='models.py', first=1, only=None):
    """Cut the solution blocks out of a reference source.

    :param reference: Python source with marked blocks
    :param file: its name in the student's folder
    :param first: number of its first TODO
    :param only: numbers of the TODOs to leave open; the solution of the others stays, without its markers. None: all
    :return: source in which each block raises ``NotImplementedError('TODO n: name ...')``
    :raises ValueError: a block without its TODO, a TODO with the wrong name or number, an unpaired marker
    """
    names = qualified_names(reference)
    kept, todo, begin, last_number = [], None, None, first
    for number, line in enumerate(reference.splitlines(), 1):
        marker = line.strip()
        if begin is None and (title := TITLE.match(line)):
            todo = int(title[1]), title[2]
            if only is not None and todo[0] not in only:
                line = line.replace(f'TODO {title[1]}: {title[2]}', f'{title[2]} (done)')
        if marker == BEGIN:
            if begin is not None or todo is None:
                raise ValueError(f'line {number}: {BEGIN} inside a block or without a "# TODO n: name" above it')
            if todo[1] != names.get(number):
                raise ValueError(f'line {number}: the TODO says {todo[1]}, the block is in {names.get(number)}')
            if not last_number <= todo[0] <= last_number + 1:
                raise ValueError(f'line {number}: TODO {todo[0]} follows TODO {last_number}')
            begin, last_number = number, todo[0]
            if only is not None and todo[0] not in only:
                continue
            message = f'TODO {todo[0]}: {todo[1]} is still to do: follow its steps in {file}'
            indent = line[:len(line) - len(line.lstrip())]
            kept += [f'{indent}raise NotImplementedError(', f'{indent}    {message!r})']
        elif marker == END:
            if begin is None:
                raise ValueError(f'line {number}: {END} without {BEGIN}')
            begin = todo = None
        elif begin is None or only is not None and todo[0] not in only:
            kept.append(line)
    if begin is not None:
        raise ValueError(f'line {begin}: {BEGIN} without {END}')
    return '\n'.join(kept) + '\n'


def qualified_names(source):
    """Line number -> 'Class.method', or 'function', around it."""
    names = {}
    for parent in ast.parse(source).body:
        in_class = isinstance(parent, ast.ClassDef)
        for node in parent.body if in_class else [parent]:
            if isinstance(node, ast.FunctionDef):
                # a marker below the last statement still belongs to the function
                for line in range(node.lineno, node.end_lineno + 2):
                    names[line] = f'{parent.name}.{node.name}' if in_class else node.name
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true', help='only say whether models.py is up to date')
    arguments = parser.parse_args()
    source, target = student_source(REFERENCE.read_text()), ROOT / 'models.py'
    if arguments.check:
        if not target.exists() or target.read_text() != source:
            sys.exit('models.py is not what instructor/models.py gives: run python -m instructor.cut')
    else:
        with atomic_path(target) as temporary:
            temporary.write_text(source)


if __name__ == '__main__':
    main()
