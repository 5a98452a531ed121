"""Print the known mistakes with the checks that catch them: ``python -m instructor.mistakes``."""

import tempfile

from tqdm import tqdm

from instructor.expected import checking, load
from instructor.mistakes import correct_solutions, mistakes


def caught_by(mistake, folder):
    """Names of the checks of its TODO that fail."""
    subject = checking.in_this_process(load(mistake.source(), folder))
    return [v.test for v in checking.judge(mistake.todo, subject) if v.outcome == 'failed']


def table(caught):
    """
    :param caught: (todo, name) of a mistake -> names of the checks that fail
    :return: the text, in Markdown
    """
    lines = ['# Mistakes, and the checks that catch them', '',
             f'{len(mistakes())} mistakes, each caught and named by the checks of its own TODO alone;',
             f'{len(correct_solutions())} right solutions written in other ways get every point.', '']
    for todo, entry in checking.rubric().items():
        lines += [f'## TODO {todo}. {entry["title"]}', '', '| mistake | what it is | caught by |', '|:---|:---|:---|']
        for mistake in mistakes():
            if mistake.todo == todo:
                names = ', '.join(name.removeprefix('test_').replace('_', ' ') for name in caught[todo, mistake.name])
                lines.append(f'| {mistake.name} | {mistake.about} | {names} |')
        lines.append('')
    lines += ['## Right solutions', '', '| solution | what is different |', '|:---|:---|',
              *(f'| {solution.name} | {solution.about} |' for solution in correct_solutions()), '']
    return '\n'.join(lines)


def main():
    with tempfile.TemporaryDirectory() as folder:
        caught = {(m.todo, m.name): caught_by(m, folder) for m in tqdm(mistakes(), desc='mistakes', unit='mistake')}
    print(table(caught))


if __name__ == '__main__':
    main()
