"""A bonus task: ``python -m instructor.bonus`` (``make bonus``).

Packs ``build/bonus/captioning-bonus.zip``, to be unzipped over the handout: ``extensions.py`` with its TODOs open, the
notebook that compares decoders, their tests and their pages. ``--todo 7`` leaves open that one alone, with the others
done: 6 spatial attention, 7 adaptive attention, 8 RNN and GRU cells, 9 Bahdanau's attention, 10 scaled dot-product
attention and CaptionNet, 11 scheduled sampling; and, in files that the handout holds with these TODOs open, 12
self-critical training, 13 ensembles, 14 trained word vectors. They are checked by ``pytest tests/bonus -k adaptive``
and the like. Hand it out when TODO 5 is done: the code around these TODOs shows a teacher-forcing loop.
"""

import argparse
from pathlib import Path

from instructor.assemble import ROOT, wanted_files, without_outputs
from instructor.cut import student_source
from instructor.handout import BONUS, FOR_THE_BONUS, pack
from utils import atomic_path

TODOS = range(6, 15)  # the lab's own are 1 to 5
TESTS = ('conftest.py', 'verdicts.py', 'test_extensions.py', 'test_self_critical.py', 'test_ensembles.py',
         'test_word_vectors.py')


def files(todos=None):
    """What is handed out: path in the folder -> content.

    :param todos: numbers of the TODOs that are open; None: all
    """
    sources = {name: student_source((ROOT / name).read_text(encoding='utf-8'), name, first, todos).encode()
               for name, first in BONUS.items()}
    pages = {path.as_posix(): (ROOT / path).read_bytes() for path in sorted(wanted_files())
             if path.name not in BONUS and any(path.match(pattern) for pattern in FOR_THE_BONUS)}
    pages['compare.ipynb'] = without_outputs(pages['compare.ipynb'].decode()).encode()
    return {
        **pages,
        **{f'tests/bonus/{name}': (ROOT / 'tests' / 'given' / name).read_bytes() for name in TESTS},
        **sources}


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
