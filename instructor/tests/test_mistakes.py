"""Every mistake of the library is caught and named by its TODO's checks; every right solution passes."""

import functools
import importlib
import re
import subprocess
import sys

import numpy as np
import pytest

from instructor import expected
from instructor.assemble import ROOT
from instructor.cut import BONUS, REFERENCE
from instructor.expected import TODOS, checking, load
from instructor.mistakes import __main__ as command
from instructor.mistakes import correct_solutions, mistakes

checks = importlib.import_module('checks')  # of tests/, where instructor.expected has looked
SLOW = ('test_speed',)
STORED = checking.Stored()
MISTAKES, CORRECT = mistakes(), correct_solutions()
OF_THE_BONUS = mistakes(BONUS)


def verdicts(source, folder, todo, skip=()):
    return checking.judge(todo, subject(source, folder), skip)


@functools.cache
def subject(source, folder):
    return checking.in_this_process(load(source, folder), STORED)


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda m: f'{m.todo}: {m.name}')
def test_mistake_is_caught_and_named_by_its_todo(mistake, tmp_path):
    quick = verdicts(mistake.source(), tmp_path, mistake.todo, SLOW)
    if all(verdict.outcome == 'passed' for verdict in quick):  # only a clock tells
        quick = verdicts(mistake.source(), tmp_path, mistake.todo)
    is_named(mistake, quick)


@functools.cache
def bonus():
    return expected.fresh_bonus(), checking.Stored(expected.EXPECTED_OF_BONUS)


def verdicts_of_the_bonus(patch, folder):
    """Of its TODO, and of others in the same file."""
    fresh, stored = bonus()
    asked = fresh.subject(fresh.patched(patch, folder), stored)
    return checking.judge(patch.todo, asked), [verdict for todo, file in BONUS.items() if todo != patch.todo
                                               and file == BONUS[patch.todo] for verdict in checking.judge(todo, asked)]


@pytest.mark.parametrize('mistake', OF_THE_BONUS, ids=lambda m: f'{m.todo}: {m.name}')
def test_mistake_of_the_bonus_is_caught_and_named(mistake, tmp_path):
    own, others = verdicts_of_the_bonus(mistake, tmp_path)
    is_named(mistake, own)
    assert [verdict.message for verdict in others if verdict.outcome == 'failed'] == []


@pytest.mark.parametrize('solution', correct_solutions(of_the_bonus=True), ids=lambda s: f'{s.todo}: {s.name}')
def test_right_solution_of_the_bonus_passes_the_checks(solution, tmp_path):
    own, others = verdicts_of_the_bonus(solution, tmp_path)
    assert [verdict for verdict in own + others if verdict.outcome != 'passed'] == []


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
        assert re.match(rf'TODO {mistake.todo}, [\w.]+: expected .*; here .*', verdict.message)
        assert '\n' not in verdict.message


@pytest.mark.parametrize('skip', [SLOW, pytest.param((), marks=pytest.mark.slow)], ids=['quick', 'every'])
@pytest.mark.parametrize('solution', CORRECT, ids=lambda s: s.name)
def test_right_solution_passes_the_checks(solution, skip, tmp_path):
    for todo in TODOS:
        assert [v for v in verdicts(solution.source(), tmp_path, todo, skip) if v.outcome != 'passed'] == []


@pytest.mark.parametrize(('one', 'other'), [
    (('return z, alpha', 'return z, alpha.detach()'), ('keys[:n]', 'torch.zeros_like(keys[:n])')),
    (('return z, alpha', 'return z, alpha.detach()'), ('c[:n], keys[:n]', 'c[:n], keys')),
    (('F.relu(', '('), ('keys = self.attention', 'with torch.no_grad(): keys = self.attention')),
    (('h, c = self.decode_step(embeddings, (h, c))', 'h, c = self.decode_step(embeddings.tanh(), (h, c))'),
     ('        embeddings = self.embedding(encoded_captions)', '        self.eval()\n        embeddings = '
      'self.embedding(encoded_captions)'))])
def test_two_mistakes_never_earn_more_than_one(one, other, tmp_path):
    right = REFERENCE.read_text(encoding='utf-8')
    assert one[0] in right and other[0] in right

    def lost(*edits):
        source = right
        for old, new in edits:
            source = source.replace(old, new)
        judged = [verdict for todo in TODOS for verdict in verdicts(source, tmp_path, todo, SLOW)]
        return {(verdict.todo, verdict.test) for verdict in judged if verdict.points < verdict.possible}

    assert lost(one) and lost(other)
    assert lost(one) | lost(other) == lost(one, other)


def test_dropout_is_judged_by_what_right_ones_never_do_by_chance():
    random, share, shape = np.random.default_rng(0), 0.4, (4, 66, 104)
    for _ in range(200):
        assert max(checks.randomness(random.random(shape) > share, share)) < checks.SURE
    one_kept = random.random(shape) > share
    one_kept[..., -1] = True
    for wrong in (random.random(shape) > share ** 2, np.tile(random.random((4, 66, 1)) > share, 104),
                  np.repeat(random.random((4, 33, 104)) > share, 2, axis=1),
                  np.tile(random.random((66, 104)) > share, (4, 1, 1)),
                  random.random(shape).argsort(axis=2) >= 104 * share, one_kept):
        assert max(checks.randomness(wrong, share)) > checks.SURE


def test_library_is_large_and_its_names_are_unique():
    assert len(MISTAKES) >= 40 and len(CORRECT) >= 12
    assert len({(m.todo, m.name) for m in MISTAKES + OF_THE_BONUS}) == len(MISTAKES + OF_THE_BONUS)
    assert len({s.name for s in CORRECT}) == len(CORRECT)
    assert all(m.about[0].islower() or m.about[0].isupper() for m in MISTAKES)


def test_rubric_and_checks_are_the_same():
    for todo, entry in checking.rubric().items():
        assert list(entry['points']) == [name for name, _ in checking.checks(todo)]
        assert all((points > 0) == (name != 'test_device') for name, points in entry['points'].items())


def test_the_command_prints_mistakes_with_the_checks_that_catch_them(monkeypatch, capsys):
    few = [next(mistake for mistake in MISTAKES if mistake.todo == todo) for todo in (1, 3)]
    monkeypatch.setattr(command, 'mistakes', lambda: few)
    command.main()
    printed = capsys.readouterr().out
    for mistake in few:
        caught, = re.findall(rf'^\| {re.escape(mistake.name)} \| {re.escape(mistake.about)} \| (.+) \|$', printed, re.M)
        names = {name.removeprefix('test_').replace('_', ' ') for name, _ in checking.checks(mistake.todo)}
        assert set(caught.split(', ')) <= names
    assert all(f'| {solution.name} | {solution.about} |' in printed for solution in CORRECT)


@pytest.mark.parametrize(('came', 'wanted', 'said'), [
    ((5, 12, 1), (5, 12), 'dimension 2 (1) is too many'),
    ((12,), (1, 12), 'dimension 0 (1) is missing'),
    ((), (5,), 'dimension 0 (5 = batch_size) is missing'),
    ((12, 5), (5, 12), 'the dimensions are in another order'),
    ((5, 7), (5, 12), 'dimension 1 is 7 = encoder_dim, not 12 = num_pixels'),
    ((5, 8, 3), (5,), 'there are 3 dimensions, not 1')])
def test_two_shapes_in_words(came, wanted, said):
    lab = checking.Lab(3, checking.in_this_process(None, STORED))
    assert lab.difference_of(came, wanted) == said


@pytest.mark.parametrize(('right', 'wrong', 'said'), [
    ('h, c = self.decode_step(embeddings, (h, c))', 'h, c = decode_step(embeddings, (h, c))',
     '"self." is missing before the name of a layer'),
    ('def one_step(self, embeddings, h, c):', 'def one_step(embeddings, h, c):', 'self, the first parameter, is'),
    ('self.fc = nn.Linear(', 'fc = nn.Linear(', '"self." is missing where made'),
    ('h, c = self.decode_step(embeddings, (h, c))', 'h, c = self.decode_step(input, (h, c))',
     'a name such as input is a function of Python'),
    ('torch.cat([embeddings, beta * z], dim=1)', 'torch.cat(embeddings, beta * z)', 'torch.cat takes its tensors'),
    ('beta = torch.sigmoid(', 'beta = nn.Sigmoid(', 'nn.Sigmoid and its like make a layer')])
def test_a_common_slip_has_its_likely_cause(right, wrong, said, tmp_path):
    source = REFERENCE.read_text(encoding='utf-8')
    assert right in source
    todo = 4 if 'beta' in right else 1
    messages = {verdict.message for verdict in verdicts(source.replace(right, wrong, 1), tmp_path, todo, SLOW)
                if verdict.outcome == 'failed'}
    assert len(messages) == 1 and f'Likely cause: {said}' in messages.pop()


def test_the_missing_mean_lists_its_tensors(tmp_path):
    source = REFERENCE.read_text(encoding='utf-8').replace('init(encoder_out.mean(dim=1))', 'init(encoder_out)')
    messages = [verdict.message for verdict in verdicts(source, tmp_path, 1, SLOW) if verdict.outcome == 'failed']
    assert 'encoder_out is (5 = batch_size, 12 = num_pixels, 7 = encoder_dim)' in messages[0]


def test_a_state_in_a_tuple_is_found_in_its_todo(tmp_path):
    source = REFERENCE.read_text(encoding='utf-8').replace('return predictions, h, c', 'return predictions, (h, c)')
    messages = [verdict.message for verdict in verdicts(source, tmp_path, 1, SLOW) if verdict.outcome == 'failed']
    assert 'one_step must give back predictions, h, c, 3 values, none of them a tuple' in messages[0]


def test_sources_of_one_size_within_one_second(tmp_path, monkeypatch):
    """Python's cached bytecode could not tell them apart."""
    monkeypatch.setattr(sys, 'dont_write_bytecode', False)
    assert [load(f'ANSWER = {n}\n', tmp_path).ANSWER for n in range(9)] == list(range(9))


@pytest.mark.parametrize('of', ['the lab', 'the bonus'])
def test_expected_values_are_up_to_date_but_for_mistakes(of, monkeypatch):
    monkeypatch.setattr(expected.Fresh, 'wrong', lambda self: [])  # its clock takes time
    index, numbers = expected.content_of(
        (expected.EXPECTED if of == 'the lab' else expected.EXPECTED_OF_BONUS).read_bytes())
    kept = expected.as_file({**index, 'mistakes': {}}, numbers)
    now, numbers = expected.expected(expected.fresh() if of == 'the lab' else expected.fresh_bonus(), [])
    assert list(expected.differences(expected.as_file({**now, 'mistakes': {}}, numbers), kept)) == []


def test_a_difference_in_the_expected_values_is_said(monkeypatch, capsys):
    index, numbers = expected.content_of(expected.EXPECTED.read_bytes())
    kept = expected.as_file(index, numbers)
    name = next(name for name, known in index['mistakes'].items() if known)
    index['mistakes'][name]['another'] = index['mistakes'][name].pop(next(iter(index['mistakes'][name])))
    monkeypatch.setattr(expected, 'files', lambda: {expected.EXPECTED: expected.as_file(index, numbers)})
    monkeypatch.setattr(sys, 'argv', ['expected', '--check'])
    with pytest.raises(SystemExit, match='is not what the reference gives'):
        expected.main()
    assert f'mistakes/{name}/another: only in one of them' in capsys.readouterr().out
    other = numbers.copy()
    other[7] += 1
    assert list(expected.differences(expected.as_file(index, other), expected.as_file(index, numbers))) == [
        'expected: other numbers']
    assert list(expected.differences(kept, kept)) == []


@pytest.mark.slow
def test_expected_values_are_up_to_date():
    check = subprocess.run([sys.executable, '-m', 'instructor.expected', '--check'], cwd=ROOT, capture_output=True,
                           text=True)
    assert check.returncode == 0, check.stdout + check.stderr[-500:]
