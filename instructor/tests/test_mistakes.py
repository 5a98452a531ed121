"""Every mistake of the library is caught and named by its TODO's checks; every right solution passes."""

import functools
import importlib
import re

import numpy as np
import pytest

from instructor import expected
from instructor.cut import BONUS, REFERENCE
from instructor.expected import TODOS, checking, load
from instructor.mistakes import Patch, correct_solutions, mistakes

checks = importlib.import_module('checks')  # of tests/, where instructor.expected has looked
SLOW = ('test_speed',)
RIGHT = REFERENCE.read_text(encoding='utf-8')
STORED = checking.Stored()
MISTAKES, CORRECT, OF_THE_BONUS = mistakes(), correct_solutions(), mistakes(BONUS)
FIRST = [next(mistake for mistake in MISTAKES if mistake.todo == todo) for todo in TODOS]
name_of = dict(ids=lambda value: f'{value.todo}: {value.name}' if isinstance(value, Patch) else None)


def verdicts(source, folder, todo, skip=()):
    return checking.judge(todo, subject(source, folder), skip)


@functools.cache
def subject(source, folder):
    return checking.in_this_process(load(source, folder), STORED)


def not_passed(source, folder, skip=SLOW, todos=TODOS):
    return [verdict for todo in todos for verdict in verdicts(source, folder, todo, skip)
            if verdict.outcome != 'passed']


def is_named(mistake, own):
    failed = [verdict for verdict in own if verdict.outcome == 'failed']
    assert any(mistake.about in verdict.message for verdict in failed), [v.message for v in failed]
    for verdict in failed:
        assert re.match(rf'TODO {mistake.todo}, [\w.]+: expected .*; here .*', verdict.message)
        assert '\n' not in verdict.message


# all checks and those of other TODOs: of one mistake of each TODO every day
@pytest.mark.parametrize(('mistake', 'every'), [
    pytest.param(mistake, False, marks=[pytest.mark.slow] * (mistake.name == 'pixel by pixel')) for mistake in MISTAKES
] + [
    pytest.param(mistake, True, marks=[pytest.mark.slow] * (mistake not in FIRST)) for mistake in MISTAKES], **name_of)
def test_mistake_is_caught_and_named_by_its_todo_alone(mistake, every, tmp_path):
    source = mistake.source()
    own = verdicts(source, tmp_path, mistake.todo, SLOW)
    if every or all(verdict.outcome == 'passed' for verdict in own):  # only a clock tells
        own = verdicts(source, tmp_path, mistake.todo)
    is_named(mistake, own)
    assert not every or not_passed(source, tmp_path, todos=[todo for todo in TODOS if todo != mistake.todo]) == []


@pytest.mark.parametrize('skip', [SLOW, pytest.param((), marks=pytest.mark.slow)], ids=['quick', 'every'])
@pytest.mark.parametrize('solution', CORRECT, **name_of)
def test_right_solution_passes_the_checks(solution, skip, tmp_path):
    assert not_passed(solution.source(), tmp_path, skip) == []


@functools.cache
def bonus():
    return expected.fresh_bonus(), checking.Stored(expected.EXPECTED_OF_BONUS)


@pytest.mark.parametrize(('patch', 'is_right'), [
    *((patch, False) for patch in OF_THE_BONUS), *((patch, True) for patch in correct_solutions(of_the_bonus=True))],
    **name_of)
def test_mistake_of_the_bonus_is_caught_and_named_and_right_solution_passes(patch, is_right, tmp_path):
    """By the checks of its TODO, and of others in the same file."""
    fresh, stored = bonus()
    asked = fresh.subject(fresh.patched(patch, tmp_path), stored)
    own = checking.judge(patch.todo, asked)
    others = [verdict for todo, file in BONUS.items() if todo != patch.todo and file == BONUS[patch.todo]
              for verdict in checking.judge(todo, asked)]
    if is_right:
        assert {verdict.outcome for verdict in own + others} == {'passed'}
    else:
        is_named(patch, own)
        assert 'failed' not in {verdict.outcome for verdict in others}


@pytest.mark.parametrize(('one', 'other'), [
    (('return z, alpha', 'return z, alpha.detach()'), ('keys[:n]', 'torch.zeros_like(keys[:n])')),
    (('return z, alpha', 'return z, alpha.detach()'), ('c[:n], keys[:n]', 'c[:n], keys')),
    (('F.relu(', '('), ('keys = self.attention', 'with torch.no_grad(): keys = self.attention')),
    (('h, c = self.decode_step(embeddings, (h, c))', 'h, c = self.decode_step(embeddings.tanh(), (h, c))'),
     ('        embeddings = self.embedding(encoded_captions)', '        self.eval()\n        embeddings = '
      'self.embedding(encoded_captions)'))])
def test_two_mistakes_never_earn_more_than_one(one, other, tmp_path):
    def lost(*edits):
        source = RIGHT
        for old, new in edits:
            assert old in source
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


@pytest.mark.parametrize(('came', 'wanted', 'said'), [
    ((5, 12, 1), (5, 12), 'dimension 2 (1) should not be there: squeeze(2) takes it away'),
    ((5,), (5, 12), 'dimension 1 (12 = num_pixels) is missing'),
    ((), (5,), 'dimension 0 (5 = batch_size) is missing'),
    ((), (5, 12), '.sum() or .mean() without a dimension takes all of them away'),
    ((12, 5), (5, 12), 'the dimensions are in another order'),
    ((5, 7), (5, 12), 'dimension 1 is 7 = encoder_dim, not 12 = num_pixels'),
    ((5, 8, 3), (5,), 'the number of dimensions is 3, not 1')])
def test_two_shapes_in_words(came, wanted, said):
    assert checking.Lab(3, checking.in_this_process(None, STORED)).difference_of(came, wanted) == said


STEP = 'h, c = self.decode_step(embeddings, (h, c))'


@pytest.mark.parametrize(('right', 'wrong', 'said'), [
    (STEP, STEP.replace('self.', ''), '"self." is missing before the name of a layer'),
    ('def one_step(self, embeddings, h, c):', 'def one_step(embeddings, h, c):', 'self, the first parameter, is'),
    ('self.fc = nn.Linear(', 'fc = nn.Linear(', 'made without "self."'),
    (STEP, STEP.replace('embeddings', 'input'), 'a name such as input is a function of Python'),
    ('torch.cat([embeddings, beta * z], dim=1)', 'torch.cat(embeddings, beta * z)', 'torch.cat takes its tensors'),
    ('beta = torch.sigmoid(', 'beta = nn.Sigmoid(', 'nn.Sigmoid and the like make a layer'),
    ('init(encoder_out.mean(dim=1))', 'init(encoder_out)',
     'encoder_out is (5 = batch_size, 12 = num_pixels, 7 = encoder_dim)'),
    ('return predictions, h, c', 'return predictions, (h, c)', 'one_step to return predictions, h, c, 3 values'),
    ('self.fc(self.dropout(h))', 'self.fc(F.dropout(h))', 'the same call gives other numbers the second time'),
    ('encoder_out[sort_ind], ', 'encoder_out[sort_ind.argsort()], ', 'pixels, words or states of different captions'),
    ('return predictions, h, c', 'return predictions, h, h', 'these are the numbers of h'),
    ('self.fc = nn.Linear(decoder_dim, vocab_size)', 'self.fc = nn.Linear(decoder_dim, vocab_size, bias=False)',
     'Likely cause: something there is None: a bias'),
    ('self.init_c = nn.Linear(encoder_dim, decoder_dim)', 'self.init_c = self.init_h', 'these are the numbers of init'),
    ('[embeddings, beta * z]', '[embeddings, self.dropout(beta * z)]', 'only what goes into fc is dropped'),
    ('        return predictions, encoded_captions, decode_lengths, sort_ind',
     '        return predictions[sort_ind.argsort()], encoded_captions, decode_lengths, sort_ind',
     'the rows of predictions are not in the order of sort_ind'),
    ('alpha.unsqueeze(1), encoder_out).squeeze(1)', 'alpha.unsqueeze(1), encoder_out).squeeze(1) + encoder_out.mean(1)',
     'sum over the pixels of alpha * encoder_out'),
    ('encoder_out, encoded_captions = encoder_out[sort_ind], encoded_captions[sort_ind]',
     'encoder_out = encoder_out[sort_ind]; encoded_captions[:] = encoded_captions[sort_ind]',
     'changes encoded_captions in place'),
    ('return predictions, encoded_captions, decode_lengths, sort_ind',
     'return predictions * torch.ones(self.vocab_size), encoded_captions, decode_lengths, sort_ind',
     'needs a CPU'),
    ('return z, alpha', 'return z, e', 'return these as alpha'),
    ('self.bn = nn.BatchNorm1d(embed_dim)', 'self.bn = nn.LayerNorm(embed_dim)', 'self.bn is nn.BatchNorm1d')])
def test_a_common_slip_has_its_likely_cause(right, wrong, said, tmp_path):
    assert right in RIGHT
    todo = 2 if 'sort_ind' in right else 3 if 'alpha' in right else 4 if 'beta' in right or 'init_c' in right else 1
    judged = verdicts(RIGHT.replace(right, wrong, 1), tmp_path, todo, SLOW)
    assert said in next(verdict.message for verdict in judged if verdict.outcome == 'failed')


@pytest.mark.parametrize('path', [expected.EXPECTED, expected.EXPECTED_OF_BONUS], ids=['the lab', 'the bonus'])
def test_expected_values_are_up_to_date_but_for_mistakes(path, monkeypatch):
    monkeypatch.setattr(expected.Fresh, 'wrong', lambda self: [])  # its clock takes time
    index, numbers = expected.content_of(path.read_bytes())
    kept = expected.as_file({**index, 'mistakes': {}}, numbers)
    right = expected.fresh() if path == expected.EXPECTED else expected.fresh_bonus()
    now, numbers = expected.expected(right, [])
    assert list(expected.differences(expected.as_file({**now, 'mistakes': {}}, numbers), kept)) == []


def test_a_difference_in_the_expected_values_is_found():
    index, numbers = expected.content_of(expected.EXPECTED.read_bytes())
    kept = expected.as_file(index, numbers)
    assert list(expected.differences(kept, kept)) == []
    assert list(expected.differences(expected.as_file(index, numbers + (np.arange(numbers.size) == 7)), kept))
    known = next(known for known in index['mistakes'].values() if known)
    known['another'] = known.pop(next(iter(known)))
    assert 'another' in str(list(expected.differences(expected.as_file(index, numbers), kept)))


@pytest.mark.slow
def test_expected_values_are_up_to_date():
    """After a change of the reference, a check or a mistake: ``make remake``."""
    for path, content in expected.files().items():
        assert list(expected.differences(content, path.read_bytes())) == []
