"""Every mistake of the library is caught and named by its TODO's checks; every right solution passes."""

import functools
import json
import re
import subprocess
import sys

import pytest

from instructor import expected
from instructor.assemble import ROOT
from instructor.expected import load, probes
from instructor.judge import TODOS, checking, checks, judge
from instructor.mistakes import __main__ as command
from instructor.mistakes import correct_solutions, mistakes

SLOW = ('test_learns_a_few_captions_by_heart', 'test_speed')
MISTAKES, CORRECT = mistakes(), correct_solutions()


def verdicts(source, folder, todo, skip=()):
    models = load(source, folder)
    return judge(todo, functools.cache(lambda probe: probes.run(probe, models)), checking.Stored(), probes.Inputs(),
                 skip)


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda m: f'{m.todo}: {m.name}')
def test_mistake_is_caught_and_named_by_its_todo(mistake, tmp_path):
    quick = verdicts(mistake.source(), tmp_path, mistake.todo, SLOW)
    if all(verdict.outcome == 'passed' for verdict in quick):  # only training or a clock tells
        quick = verdicts(mistake.source(), tmp_path, mistake.todo)
    is_named(mistake, quick)


# one of each TODO, for every day
FIRST = [next(mistake for mistake in MISTAKES if mistake.todo == todo) for todo in TODOS]


@pytest.mark.parametrize('mistake', [pytest.param(m, marks=[pytest.mark.slow] * (m not in FIRST)) for m in MISTAKES],
                         ids=lambda m: f'{m.todo}: {m.name}')
def test_mistake_is_named_by_all_checks_of_its_todo_and_no_others(mistake, tmp_path):
    source = mistake.source()
    is_named(mistake, verdicts(source, tmp_path, mistake.todo))
    for todo in TODOS:
        if todo != mistake.todo:
            assert [v for v in verdicts(source, tmp_path, todo, SLOW) if v.outcome != 'passed'] == []


def is_named(mistake, own):
    failed = [verdict for verdict in own if verdict.outcome == 'failed']
    assert failed, 'the checks of its TODO let it pass'
    assert any(mistake.about in verdict.message for verdict in failed), [v.message for v in failed]
    for verdict in failed:
        assert re.match(rf'TODO {mistake.todo}, \w+\.\w+: expected .*; here .*', verdict.message)
        assert '\n' not in verdict.message


@pytest.mark.parametrize('skip', [SLOW, pytest.param((), marks=pytest.mark.slow)], ids=['quick', 'every'])
@pytest.mark.parametrize('solution', CORRECT, ids=lambda s: s.name)
def test_right_solution_passes_the_checks(solution, skip, tmp_path):
    for todo in TODOS:
        assert [v for v in verdicts(solution.source(), tmp_path, todo, skip) if v.outcome != 'passed'] == []


def test_library_is_large_and_its_names_are_unique():
    assert len(MISTAKES) >= 40 and len(CORRECT) >= 12
    assert len({(m.todo, m.name) for m in MISTAKES}) == len(MISTAKES)
    assert len({s.name for s in CORRECT}) == len(CORRECT)
    assert all(m.about[0].islower() or m.about[0].isupper() for m in MISTAKES)


def test_rubric_and_checks_are_the_same():
    for todo, entry in checking.rubric().items():
        assert list(entry['points']) == [name for name, _ in checks(todo)]
        assert all(points > 0 for points in entry['points'].values())


def test_the_command_prints_mistakes_with_the_checks_that_catch_them(monkeypatch, capsys):
    few = [next(mistake for mistake in MISTAKES if mistake.todo == todo) for todo in (1, 3)]
    monkeypatch.setattr(command, 'mistakes', lambda: few)
    command.main()
    printed = capsys.readouterr().out
    for mistake in few:
        caught, = re.findall(rf'^\| {re.escape(mistake.name)} \| {re.escape(mistake.about)} \| (.+) \|$', printed, re.M)
        names = {name.removeprefix('test_').replace('_', ' ') for name, _ in checks(mistake.todo)}
        assert set(caught.split(', ')) <= names
    assert all(f'| {solution.name} | {solution.about} |' in printed for solution in CORRECT)


def test_sources_of_one_size_within_one_second(tmp_path, monkeypatch):
    """Python's cached bytecode could not tell them apart."""
    monkeypatch.setattr(sys, 'dont_write_bytecode', False)
    assert [load(f'ANSWER = {n}\n', tmp_path).ANSWER for n in range(9)] == list(range(9))


def test_expected_values_are_up_to_date_but_for_training_and_speed(monkeypatch):
    quick = {name: probe for name, probe in probes.PROBES.items() if not name.endswith(('_learning', '_speed'))}
    assert len(probes.PROBES) - len(quick) == 5
    monkeypatch.setattr(probes, 'PROBES', quick)
    monkeypatch.setattr(expected, 'OF_TODO', {todo: [name for name in names if name in quick]
                                              for todo, names in expected.OF_TODO.items()})
    monkeypatch.setattr(expected.Fresh, 'wrong', lambda self: [])  # it asks for all probes
    kept = {part: {name: value for name, value in of_part.items() if name in quick}
            for part, of_part in json.loads(expected.EXPECTED.read_text()).items()}
    assert list(expected.differences(json.loads(json.dumps(expected.expected())), kept)) == []


def test_a_difference_in_the_expected_values_is_said(monkeypatch, capsys):
    kept = json.loads(expected.EXPECTED.read_text())
    name = next(iter(kept['mistakes']))
    kept['mistakes'][name]['another'] = kept['mistakes'][name].pop(next(iter(kept['mistakes'][name])))
    monkeypatch.setattr(expected, 'expected', lambda: kept)
    monkeypatch.setattr(sys, 'argv', ['expected', '--check'])
    with pytest.raises(SystemExit, match='is not what the reference gives'):
        expected.main()
    assert f'/mistakes/{name}/another: only in one of them' in capsys.readouterr().out
    assert not list(expected.differences([1.0, {'a': 2}], [1.00001, {'a': 2}]))
    assert list(expected.differences([1.0, {'a': 2}], [1.001, {'a': 3}])) == ['/0: 1.0 and 1.001', '/1/a: 2 and 3']


@pytest.mark.slow
def test_expected_values_are_up_to_date():
    check = subprocess.run([sys.executable, '-m', 'instructor.expected', '--check'], cwd=ROOT, capture_output=True,
                           text=True)
    assert check.returncode == 0, check.stdout + check.stderr[-500:]
