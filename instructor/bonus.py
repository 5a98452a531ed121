"""A bonus task: ``python -m instructor.bonus`` (``make bonus``).

Packs ``build/bonus/captioning-bonus.zip``, to be unzipped over the handout: ``extensions.py`` with its TODOs open, the
notebook that compares decoders, their tests and their page. ``--todo 7`` leaves open that one alone, with the others
done: 6 spatial attention, 7 adaptive attention, 8 RNN and GRU cells, 9 Bahdanau's attention, 10 scaled dot-product
attention and CaptionNet, 11 scheduled sampling. They are checked by ``pytest tests/bonus -k adaptive`` and the like.
Hand it out when TODO 5 is done: the code around these TODOs shows a teacher-forcing loop.
"""

import argparse
from pathlib import Path

from instructor.assemble import ROOT, without_outputs
from instructor.cut import student_source
from instructor.handout import pack
from utils import atomic_path

TODOS = range(6, 12)  # the lab's own are 1 to 5


def files(todos=None):
    """What is handed out: path in the folder -> content.

    :param todos: numbers of the TODOs that are open; None: all
    """
    source = (ROOT / 'extensions.py').read_text(encoding='utf-8')
    given = ROOT / 'tests' / 'given'
    return {
        'compare.ipynb': without_outputs((ROOT / 'compare.ipynb').read_text(encoding='utf-8')).encode(),
        'docs/extensions.md': (ROOT / 'docs' / 'extensions.md').read_bytes(),
        'extensions.py': student_source(source, 'extensions.py', TODOS[0], todos).encode(),
        'tests/bonus/conftest.py': (given / 'conftest.py').read_bytes(),
        'tests/bonus/test_extensions.py': (given / 'test_extensions.py').read_bytes()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', type=Path, default=ROOT / 'build' / 'bonus')
    parser.add_argument('--todo', type=int, nargs='+', choices=TODOS, help='leave only these open, the others done')
    arguments = parser.parse_args()
    target = arguments.output / 'captioning-bonus.zip'
    with atomic_path(target) as temporary:
        temporary.write_bytes(pack(files(arguments.todo)))
    print(f'{target}: unzip it over the handout')


if __name__ == '__main__':
    main()
