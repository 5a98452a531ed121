"""A bonus task: ``python -m instructor.bonus`` (``make bonus``).

Packs ``build/bonus/captioning-bonus.zip``, to be unzipped over the handout: ``BONUS.md``, which says what to do,
the decoders of ``lab/more`` with their TODOs open, the notebook that compares decoders, their tests and their pages;
and the files of the handout that hold TODOs 11 to 14. With ``--todo 7`` that one alone is open, and the others'
solutions are there.
Hand it out when TODO 5 is done: the code around these TODOs shows a teacher-forcing loop. docs/grading.md says how to
check what comes back.
"""

import argparse
import json
import sys
import textwrap
from pathlib import Path

from instructor.assemble import ROOT, wanted_files, without_outputs
from instructor.cut import student_source
from instructor.handout import BONUS, FOR_THE_BONUS, pack
from utils import atomic_path

sys.path.insert(0, str(ROOT / 'tests' / 'given'))
import papers  # noqa: E402

TASKS = {  # number (the lab's own are 1 to 5) -> what, paper, file, and which checks are its own: pytest -k '...'
    6: ('spatial attention', 'Lu et al. 2017, sec. 2.2', 'lab/more/adaptive.py', 'spatial and not adaptive'),
    7: ('adaptive attention with a sentinel (uses 6)', 'Lu et al. 2017, sec. 2.3', 'lab/more/adaptive.py', 'adaptive'),
    8: ('RNN, GRU and LSTM cells', 'Elman 1990; Cho et al. 2014', 'lab/more/cells.py',
        'rnn or gru or lstm or cells_by_hand'),
    9: ('gated Bahdanau attention with ELU', 'Bahdanau et al. 2015', 'lab/more/bahdanau.py',
        'bahdanau and not killed'),
    10: ('scaled dot-product attention with heads, deep output', 'Vaswani et al. 2017', 'lab/more/captionnet.py',
         'scaled or heads or captionnet'),
    11: ('scheduled sampling (uses 9)', 'Bengio et al. 2015', 'lab/more/decoder.py', 'ratio or drawn_from_the_softmax'),
    12: ('self-critical training: baseline, advantage, loss', 'Rennie et al. 2017', 'lab/more/self_critical.py',
         'surrogate'),
    13: ('ensembles', '', 'lab/more/ensembles.py', 'test_ensembles'),
    14: ('trained word vectors', '', 'lab/more/word_vectors.py', 'test_word_vectors')}
ALIKE = {6: 7, 7: 6, 9: 10, 10: 9}  # attend, or start and one_step, of the one show those of the other
TESTS = ('conftest.py', 'verdicts.py', 'small.py', 'test_extensions.py', 'test_self_critical.py', 'test_ensembles.py',
         'test_word_vectors.py')  # and what papers.py gives


def task(todos=None):
    """BONUS.md.

    :param todos: numbers of the TODOs that are open; None: all
    """
    chosen = sorted(todos or TASKS)
    rows = ['| TODO | what | paper | file | its checks |', '|---:|:---|:---|:---|:---|']
    rows += [f'| {todo} | {what} | {paper} | `{file}` | `{words}` |'
             for todo, (what, paper, file, words) in TASKS.items() if todo in chosen]
    text = (ROOT / 'instructor' / 'BONUS.md').read_text(encoding='utf-8')
    named = ', '.join(f'`{file}`' for file in dict.fromkeys(TASKS[todo][2] for todo in chosen))
    for mark, value in (('tasks', '\n'.join(rows)), ('words', TASKS[chosen[0]][3]), ('files', named)):
        text = text.replace('{{' + mark + '}}', value)
    *others, last = text.rstrip().split('\n\n')  # the one with the names of the files
    return '\n\n'.join([*others, textwrap.fill(last, 120)]) + '\n'


def files(todos=None):
    """What is handed out: path in the folder -> content.

    :param todos: numbers of the TODOs that are open; None: all
    """
    sources = {name: student_source((ROOT / name).read_text(encoding='utf-8'), name, first, todos).encode()
               for name, first in BONUS.items()}
    pages = {path.as_posix(): (ROOT / path).read_bytes() for path in sorted(wanted_files())
             if path.as_posix() not in BONUS and any(path.match(pattern) for pattern in FOR_THE_BONUS)}
    # the handout has it without the runs that ask for more
    pages['compare.ipynb'] = without_outputs((ROOT / 'compare.ipynb').read_text(encoding='utf-8')).encode()
    return {
        'BONUS.md': task(todos).encode(),
        **pages,
        'tests/bonus/expected.json': json.dumps(papers.numbers()).encode(),
        **{f'tests/bonus/{name}': (ROOT / 'tests' / 'given' / name).read_bytes() for name in TESTS},
        **sources}


def main():
    parser = argparse.ArgumentParser(
        description='Pack a bonus task, to be unzipped over the handout.', epilog='\n'.join(
            ['TODOs:', *(f'  {todo:2}  {what}  ({file})' for todo, (what, _, file, _) in TASKS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--output', type=Path, default=ROOT / 'build' / 'bonus')
    parser.add_argument('--todo', type=int, nargs='+', choices=TASKS, metavar='N',
                        help='leave only these open; the zip holds the solutions of the others')
    arguments = parser.parse_args()
    which = ''.join(f'-{todo}' for todo in sorted(set(arguments.todo or ())))
    target = arguments.output / f'captioning-bonus{which}.zip'
    with atomic_path(target) as temporary:
        temporary.write_bytes(pack(files(arguments.todo)))
    print(f'{target}: unzip it over the handout, when TODO 5 is done')
    if which:
        print(f'It holds the solutions of all other TODOs from {min(TASKS)} to {max(TASKS)}: whoever has it has those.')
        for one in sorted(ALIKE.keys() & set(arguments.todo)):
            if (other := ALIKE[one]) not in arguments.todo:
                print(f'TODO {other}, solved there, is in parts as TODO {one}: leave both open, --todo {one} {other}.')


if __name__ == '__main__':
    main()
