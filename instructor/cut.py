"""The student's ``models.py``, cut from the reference.

The reference ``instructor/models.py`` marks what students write with ``### BEGIN SOLUTION`` and
``### END SOLUTION``, right below a comment that starts with ``# TODO 3: Attention.forward`` and gives steps,
shapes and the equation. Cutting keeps the comment and puts one ``raise NotImplementedError`` in place of the
block. Run as a program, it writes the root ``models.py``.
"""

import ast
import re
from pathlib import Path

from utils import atomic_path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / 'instructor' / 'models.py'
# TODOs of the bonus task -> the file that holds them
BONUS = {6: 'lab/more/adaptive.py', 7: 'lab/more/adaptive.py', 8: 'lab/more/cells.py', 9: 'lab/more/bahdanau.py',
         10: 'lab/more/captionnet.py', 11: 'lab/more/decoder.py', 12: 'lab/more/self_critical.py',
         13: 'lab/more/ensembles.py', 14: 'lab/more/word_vectors.py'}
BEGIN, END = '### BEGIN SOLUTION', '### END SOLUTION'
TITLE = re.compile(r'^\s*# TODO (\d+): (\S+)$')


def student_source(reference, file='models.py', only=None):
    """Cut the solution blocks out of a reference source.

    :param reference: Python source with marked blocks
    :param file: its name in the student's folder
    :param only: numbers of the TODOs to leave open; the solution of the others stays, without its markers. None: all
    :return: source in which each block raises ``NotImplementedError('TODO n: name ...')``
    :raises ValueError: a block without its TODO, a TODO with the wrong name, an unpaired marker
    """
    names = qualified_names(reference)
    kept, todo, begin, solved = [], None, None, False
    for number, line in enumerate(reference.splitlines(), 1):
        marker = line.strip()
        if begin is None and (title := TITLE.match(line)):
            todo = int(title[1]), title[2]
            solved = only is not None and todo[0] not in only
            if solved:
                line = line.replace(f'TODO {title[1]}: {title[2]}', f'{title[2]} (done)')
        if marker == BEGIN:
            if begin is not None or todo is None:
                raise ValueError(f'line {number}: {BEGIN} inside a block or without a "# TODO n: name" above it')
            if todo[1] != names.get(number):
                raise ValueError(f'line {number}: the TODO says {todo[1]}, the block is in {names.get(number)}')
            begin = number
            if solved:
                continue
            message = f'TODO {todo[0]}: {todo[1]} is still to do: follow its steps in {file}'
            indent = line[:len(line) - len(line.lstrip())]
            kept += [f'{indent}raise NotImplementedError(', f'{indent}    {message!r})']
        elif marker == END:
            if begin is None:
                raise ValueError(f'line {number}: {END} without {BEGIN}')
            begin = todo = None
        elif begin is None or solved:
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
    with atomic_path(ROOT / 'models.py') as temporary:
        temporary.write_text(student_source(REFERENCE.read_text(encoding='utf-8')), encoding='utf-8')


if __name__ == '__main__':
    main()
