"""The mistake library: wrong versions of the TODO blocks, and right ones written in another way.

``todo1.toml`` ... ``todo14.toml`` hold what students get wrong, ``correct.toml`` other right solutions. A patch names
the method whose solution block in ``instructor/models.py`` (from TODO 6 on: in a file of ``lab/more``) it changes:
``old`` to ``new``, several ``edits``, or the whole ``block``.
"""

import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from instructor.cut import BEGIN, BONUS, END, REFERENCE, ROOT, qualified_names

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Patch:
    """
    :ivar name: short and unique
    :ivar about: one sentence on what it is
    :ivar todo: number of the TODO, None for a right solution of all the lab's
    :ivar changes: list of (method, edits: list of (old, new), or the whole new block as a string)
    """

    name: str
    about: str
    todo: int | None
    changes: tuple

    def source(self):
        """The reference's source with this patch.

        :raises ValueError: an edit's old text does not occur exactly once in its block
        """
        source = (ROOT / BONUS[self.todo] if self.todo in BONUS else REFERENCE).read_text(encoding='utf-8')
        for method, edits in self.changes:
            source = _replace_block(source, method, edits, self.name)
        return source


def mistakes(todos=range(1, 6)):
    """All wrong versions, in the order of the TODOs."""
    return [_patch(entry, todo) for todo in todos
            for entry in tomllib.loads((HERE / f'todo{todo}.toml').read_text(encoding='utf-8'))['mistake']]


def correct_solutions(of_the_bonus=False):
    """Right solutions that are written differently from the reference."""
    entries = tomllib.loads((HERE / 'correct.toml').read_text(encoding='utf-8'))['correct']
    return [_patch(entry, entry.get('todo')) for entry in entries if ('todo' in entry) == of_the_bonus]


def _patch(entry, todo):
    changes = tuple((change['in'], change.get('block') or change.get('edits') or [(change['old'], change['new'])])
                    for change in entry.get('changes', [entry]))
    return Patch(entry['name'], entry['about'], todo, changes)


def _replace_block(source, method, edits, name):
    names, lines = qualified_names(source), source.splitlines()
    places = [i for i, line in enumerate(lines) if names.get(i + 1) == method]
    begin, end = (next((i for i in places if lines[i].strip() == marker), None) for marker in (BEGIN, END))
    if begin is None or end is None:
        raise ValueError(f'{name}: {method} has no solution block')
    block = textwrap.dedent('\n'.join(lines[begin + 1:end]))
    if isinstance(edits, str):
        block = edits
    else:
        for old, new in edits:
            if block.count(old) != 1:
                raise ValueError(f'{name}: {old!r} occurs {block.count(old)} times in the block of {method}, not once')
            block = block.replace(old, new)
    indent = lines[begin][:len(lines[begin]) - len(lines[begin].lstrip())]
    return '\n'.join([*lines[:begin + 1], *textwrap.indent(block.rstrip(), indent).splitlines(),
                      *lines[end:]]) + '\n'
