"""A bonus task: ``python -m instructor.bonus`` (``make bonus``; ``LANGUAGE=zh`` for the Chinese one).

Packs ``build/bonus/captioning-bonus.zip``, to be unzipped over the handout: ``BONUS.md``, which says what to do,
the decoders of ``lab/more`` with their TODOs open, the notebook that compares decoders, their checks and their pages;
and the files of the handout that hold TODOs 11 to 14. With ``--todo 7`` that one alone is open, and the others'
solutions are there.
Hand it out when TODO 5 is done: the code around these TODOs shows a teacher-forcing loop. docs/grading.md says how to
check what comes back.
"""

import argparse
import re
from pathlib import Path

from instructor.assemble import ROOT, wanted_files, without_outputs
from instructor.cut import BONUS, student_source
from instructor.handout import FOR_THE_BONUS, LANGUAGES, in_chinese, pack
from utils import atomic_path

PAGE = ROOT / 'instructor' / 'BONUS.md'


def task(page, todos):
    """BONUS.md for these TODOs.

    :param page: its text, with a row for every TODO
    :param todos: numbers of the TODOs that are open
    """
    page = re.sub(r'^\| (\d+) \|.*\n', lambda row: row[0] if int(row[1]) in todos else '', page, flags=re.M)
    named = ', '.join(f'`{file}`' for file in dict.fromkeys(BONUS[todo] for todo in sorted(todos)))
    return page.replace('{{first}}', str(min(todos))).replace('{{files}}', named)


def files(todos=None, language='en'):
    """What is handed out: path in the folder -> content.

    :param todos: numbers of the TODOs that are open; None: all
    :param language: 'en' or 'zh'
    """
    found = {path.as_posix(): (ROOT / path).read_bytes() for path in sorted(wanted_files())
             if any(path.match(pattern) for pattern in FOR_THE_BONUS)}
    # the handout has it without the runs that ask for more
    found['compare.ipynb'] = without_outputs((ROOT / 'compare.ipynb').read_text(encoding='utf-8')).encode()
    for name in {*BONUS.values()}:
        found[name] = student_source((ROOT / name).read_text(encoding='utf-8'), name, todos).encode()
    found['BONUS.md'] = PAGE.read_bytes()
    if language == 'zh':
        found = in_chinese(found)
    found['BONUS.md'] = task(found['BONUS.md'].decode(), set(todos or BONUS)).encode()
    return dict(sorted(found.items()))


def main():
    rows = re.findall(r'^\| (\d+) \| (.+?) \|.*\| `(.+)` \|$', PAGE.read_text(encoding='utf-8'), re.M)
    parser = argparse.ArgumentParser(
        description='Pack a bonus task, to be unzipped over the handout.',
        epilog='\n'.join(['TODOs:', *(f'  {todo:2}  {what}  ({file})' for todo, what, file in rows)]),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--output', type=Path, default=ROOT / 'build' / 'bonus')
    parser.add_argument('--language', choices=LANGUAGES, default='en', help='of its texts')
    parser.add_argument('--todo', type=int, nargs='+', choices=BONUS, metavar='N',
                        help='leave only these open; the zip holds the solutions of the others (docs/grading.md)')
    arguments = parser.parse_args()
    which = ''.join(f'-{todo}' for todo in sorted(set(arguments.todo or ())))
    language = '' if arguments.language == 'en' else f'_{arguments.language}'
    target = arguments.output / f'captioning-bonus{which}{language}.zip'
    with atomic_path(target) as temporary:
        temporary.write_bytes(pack(files(arguments.todo, arguments.language)))
    print(f'{target}: unzip it over the handout, when TODO 5 is done')


if __name__ == '__main__':
    main()
