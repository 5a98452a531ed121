"""A bonus task: ``python -m instructor.bonus`` (``make bonus``).

Packs ``build/bonus/captioning-bonus.zip``, to be unzipped over the handout: ``BONUS.md``, which says what to do,
the decoders of ``lab/more`` with their TODOs open, the notebook that compares decoders, their checks and their pages;
and the files of the handout that hold TODOs 11 to 14. With ``--todo 7`` that one alone is open, and the others'
solutions are there.
Hand it out when TODO 5 is done: the code around these TODOs shows a teacher-forcing loop. docs/grading.md says how to
check what comes back.
"""

import argparse
import textwrap
from pathlib import Path

from instructor.assemble import ROOT, wanted_files, without_outputs
from instructor.cut import BONUS, student_source
from instructor.handout import FIRST_OF_BONUS, FOR_THE_BONUS, pack
from utils import atomic_path

TASKS = {  # number (the lab's own are 1 to 5) -> what, paper
    6: ('spatial attention', 'Lu et al. 2017, sec. 2.2'),
    7: ('adaptive attention with a sentinel (uses 6)', 'Lu et al. 2017, sec. 2.3'),
    8: ('RNN, GRU and LSTM cells', 'Elman 1990; Cho et al. 2014'),
    9: ('gated Bahdanau attention with ELU', 'Bahdanau et al. 2015'),
    10: ('scaled dot-product attention with heads, deep output', 'Vaswani et al. 2017'),
    11: ('scheduled sampling', 'Bengio et al. 2015'),
    12: ('self-critical training: baseline, advantage, loss', 'Rennie et al. 2017'),
    13: ('ensembles', ''),
    14: ('trained word vectors', '')}
ALIKE = {6: 7, 7: 6, 9: 10, 10: 9}  # attend, or start and one_step, of the one show those of the other


def task(todos=None):
    """BONUS.md.

    :param todos: numbers of the TODOs that are open; None: all
    """
    chosen = sorted(todos or TASKS)
    rows = ['| TODO | what | paper | file |', '|---:|:---|:---|:---|']
    rows += [f'| {todo} | {what} | {paper} | `{BONUS[todo]}` |' for todo, (what, paper) in TASKS.items()
             if todo in chosen]
    text = (ROOT / 'instructor' / 'BONUS.md').read_text(encoding='utf-8')
    named = ', '.join(f'`{file}`' for file in dict.fromkeys(BONUS[todo] for todo in chosen))
    for mark, value in (('tasks', '\n'.join(rows)), ('first', str(chosen[0])), ('files', named)):
        text = text.replace('{{' + mark + '}}', value)
    *others, last = text.rstrip().split('\n\n')  # the one with the names of the files
    return '\n\n'.join([*others, textwrap.fill(last, 120)]) + '\n'


def files(todos=None):
    """What is handed out: path in the folder -> content.

    :param todos: numbers of the TODOs that are open; None: all
    """
    sources = {name: student_source((ROOT / name).read_text(encoding='utf-8'), name, first, todos).encode()
               for name, first in FIRST_OF_BONUS.items()}
    pages = {path.as_posix(): (ROOT / path).read_bytes() for path in sorted(wanted_files())
             if path.as_posix() not in FIRST_OF_BONUS and any(path.match(pattern) for pattern in FOR_THE_BONUS)}
    # the handout has it without the runs that ask for more
    pages['compare.ipynb'] = without_outputs((ROOT / 'compare.ipynb').read_text(encoding='utf-8')).encode()
    return {
        'BONUS.md': task(todos).encode(),
        **pages,
        **sources}


def main():
    parser = argparse.ArgumentParser(
        description='Pack a bonus task, to be unzipped over the handout.', epilog='\n'.join(
            ['TODOs:', *(f'  {todo:2}  {what}  ({BONUS[todo]})' for todo, (what, _) in TASKS.items())]),
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
