"""What the checks of the TODOs share: asking ``models.py``, and the table at the end."""

import re
import textwrap
from pathlib import Path

import pytest
from checking import KNOWN, WORDS, Lab, in_this_process, rubric

WRONG_ONES = WORDS.get('wrong', 'wrong')  # as pytest counts them in its last line
RESULTS, OPEN = pytest.StashKey(), pytest.StashKey()
NOT_PYTHON = ' (Syntax|Indentation|Tab)Error: '
WRONG = r'(TODO \d+), ((?:\w+\.)?)(\w+): '  # begins what a check says


@pytest.fixture(scope='session')
def subject():
    """``models.py``, to be asked in this process."""
    from protocol import load

    try:
        models = load(Path(__file__).parents[1] / 'models.py')
    except Exception as error:  # a syntax error, say: every check reports it
        models = error
    return in_this_process(models)


@pytest.fixture
def lab(request, subject):
    """The checks' view of the TODO that the test file is named after."""
    return Lab(todo_of(request.node), subject)


def todo_of(item):
    """Number of the TODO that a test belongs to, or None."""
    found = re.fullmatch(r'test_todo(\d+)', item.path.stem)
    return int(found[1]) if found else None


def pytest_ignore_collect(collection_path, config):
    """``-k todo3`` asks for the checks of a TODO: the given code's own tests need not be loaded for that. And TODO 13
    is another one than TODO 1, though -k would find both."""
    needless = {'given': r'(test_)?todo\d*', 'bonus': r'(test_)?todo[1-5]'}.get(collection_path.name)
    if needless and re.fullmatch(needless, config.option.keyword):
        return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    todo = todo_of(item)
    if todo is not None and (report.when == 'call' or report.outcome != 'passed'):
        item.config.stash.setdefault(RESULTS, {})[todo, item.originalname] = report.outcome
        if report.skipped and re.search('not done yet|waits for', str(report.longrepr)):
            item.config.stash.setdefault(OPEN, {}).setdefault(todo, []).append(str(call.excinfo.value))
    return report


def pytest_report_teststatus(report):
    """What a check says is printed once, at the end, and not in pytest's list of failures."""
    if report.failed and re.match(WRONG, report.longreprtext):
        return WRONG_ONES, 'F', 'FAILED'


def one_mistake_one_paragraph(reports):
    """Of the checks of a method that fail, the first one speaks, or the first one that knows the mistake. The others
    mostly fail for the same reason. Where layers are wrong, all of their class waits for them.

    :return: list of (what it says, names of the checks: none where a file is not Python, which fails all of them)
    """
    found = {}
    for report in reports:
        todo, of, method = re.match(WRONG, report.longreprtext).groups()
        found.setdefault((todo, of), {}).setdefault(method, []).append(report)
    paragraphs = []
    for methods in found.values():
        groups = [sum(methods.values(), [])] if '__init__' in methods else methods.values()
        for group in groups:
            group.sort(key=lambda report: ('.__init__:' not in report.longreprtext,
                                           KNOWN not in report.longreprtext))
            paragraph = group[0].longreprtext, [report.nodeid.rpartition('::')[2] for report in group]
            if re.search(NOT_PYTHON, paragraph[0]):  # then all TODOs of the file say the same
                paragraph = re.sub(WRONG, '', paragraph[0]), []
            if paragraph not in paragraphs:
                paragraphs.append(paragraph)
    return paragraphs


def filled(text, indent=''):
    """In lines of 100 letters; Chinese has few spaces to break at, so the terminal breaks it."""
    if not text.isascii():
        return indent + text
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent)


def pytest_terminal_summary(terminalreporter, config):
    """What is wrong; then TODO, done / wrong / to do, points; only of the TODOs that were looked at."""
    results = config.stash.get(RESULTS, {})
    if not results:
        return
    if wrong := terminalreporter.stats.get(WRONG_ONES):
        terminalreporter.section('what is wrong')
        for text, names in one_mistake_one_paragraph(wrong):
            terminalreporter.write_line(filled(text))
            if names:
                terminalreporter.write_line(filled(f'found by {", ".join(names)}', '    '))
            terminalreporter.write_line('')
    terminalreporter.section(WORDS.get('TODOs', 'TODOs'))
    total, reached, still_open = 0, 0, config.stash.get(OPEN, {})
    for todo in sorted({todo for todo, _ in results}):
        entry = rubric().get(todo, {'points': {}})  # a bonus task has no points
        outcomes = {name: outcome for (number, name), outcome in results.items() if number == todo}
        points = sum(entry['points'].get(name, 0) for name, outcome in outcomes.items() if outcome == 'passed')
        possible = sum(entry['points'].get(name, 0) for name in outcomes)
        is_wrong, is_open = 'failed' in outcomes.values(), 'skipped' in outcomes.values()
        state = 'wrong' if is_wrong else 'to do' if is_open else 'done'
        of = f'{points:3} of {possible:2} points   {entry["title"]}' if entry['points'] else ''
        terminalreporter.write_line(f'TODO {todo}  {state:6} {of}'.rstrip())
        if not is_wrong and not is_open and 'answer' in entry:
            terminalreporter.write_line(filled(f'Predict first: {entry["answer"]}', ' ' * 8))
        if is_wrong or is_open:  # where its first `raise` still stands
            said = ' '.join(still_open.get(todo, []))
            for method in dict.fromkeys(re.findall(r'not done yet: TODO \d+: ([\w.]+) ', said)):
                terminalreporter.write_line(f'{"":8}to do: {method}')
            for other in sorted(set(re.findall(r'waits for TODO (\d+)', said)) - {str(todo)}):
                terminalreporter.write_line(f'{"":8}waits for TODO {other}')
        if is_wrong and points == possible > 0:
            terminalreporter.write_line(f'{"":8}the check that fails gives no points, but mend this before you train')
        total, reached = total + possible, reached + points
    if total:
        terminalreporter.write_line(f'{"in all":14} {reached:3} of {total:2} points')
