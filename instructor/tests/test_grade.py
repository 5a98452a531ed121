"""Right solutions, mistakes and attacks, graded in one go: every row of the table is right."""

import base64
import csv
import json
import os
import pickle
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from isolation import needs_isolation, needs_readable_python

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from instructor.expected import Fresh, checking, inputs, load, protocol
from instructor.grade import draw_inputs, grade_all, gradescope, page, printable, table, unique_names, zero
from instructor.grading import evidence, limited, sandbox
from instructor.grading.submissions import SubmissionError, read_submission
from instructor.mistakes import correct_solutions, mistakes

RIGHT = REFERENCE.read_text(encoding='utf-8')
OPEN = (ROOT / 'models.py').read_text(encoding='utf-8')
ALL = {todo: sum(entry['points'].values()) for todo, entry in checking.rubric().items()}
QUERY = '        query = self.decoder_att(decoder_hidden)\n'  # a line of the reference in Attention.forward

# What comes before or after a models.py; every attack is on one of the two: nothing done, or all right.
AT_THE_TOP = {
    'endless_loop': 'while True:\n    pass\n',
    'not_installed': 'import a_package_that_nobody_has\n',
    'exits': 'import os\nos._exit(0)\n',
    'sys_exits': 'import sys\nsys.exit(0)\n',
    'forks': 'import os\nwhile True:\n    os.fork()\n',
    'kills_its_parent': 'import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n',
    'kills_everybody': 'import os, signal\nos.kill(-1, signal.SIGKILL)\n',
    'all_memory': 'hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 28))\n',
    'syntax_error': 'def (\n',
}
ON_OPEN_TODOS = {
    'fake_report': """
print('70 passed in 1.00s')
import sys
sys.stderr.write('{"score": 70}\\n')
for number in range(3, 60):
    try:
        import os
        os.write(number, b'{"id": 1, "result": {}}\\n')
    except OSError:
        pass
""",
    'writes_results': """
import json, os
for folder in ('.', '/tmp', '/lab', '/autograder/results', os.path.expanduser('~')):
    try:
        with open(os.path.join(folder, 'results.json'), 'w') as file:
            json.dump({'score': 70}, file)
    except OSError:
        pass
""",
    'replaces_the_protocol': """
import sys, types
import numpy, torch
torch.allclose = torch.equal = lambda *a, **k: True
torch.testing.assert_close = lambda *a, **k: None
numpy.allclose = lambda *a, **k: True
sys.modules['pytest'] = types.ModuleType('pytest')
import protocol
def answer(request, models):
    names = {output + call['name'] for call in request['calls'] for output in call['outputs']}
    return {'arrays': {name: numpy.ones((5, 8), dtype='float32') for name in names}, 'errors': {}}
protocol.answer = answer
protocol.Devices.on_cpu = lambda *a: False
""",
    # the names and sizes of the layers come with requests, for those who have not made them
    'makes_layers_of_the_request': """
import sys
from torch import nn
def build(self, *args, **sizes):
    nn.Module.__init__(self)
    frame = sys._getframe()
    while frame:
        for request in [v for v in frame.f_locals.values() if isinstance(v, dict)]:
            for name, shape in [(n, w.shape) for n, w in request.get('weights', {}).items()]:
                part, _, last = name.rpartition('.')
                if '.' not in part and last == 'weight' and len(shape) == 2 and part not in self._modules:
                    setattr(self, part, nn.Embedding(*shape) if part == 'embedding' else nn.Linear(shape[1], shape[0]))
            for name, (kind, *of) in request.get('layers', {}).items():
                if hasattr(nn, kind):
                    setattr(self, name, getattr(nn, kind)(*of))
        frame = frame.f_back
Attention.__init__ = DecoderWithRNN.__init__ = DecoderWithAttention.__init__ = build
""",
    # the public values are in the handout; they must not be worth anything
    'answers_with_the_public_values': """
import protocol
try:
    import checking
    stored = checking.Stored()
    protocol.answer = lambda request, models: {
        'arrays': {name: array for name, (_, array) in stored.expected('plain_step', ()).items()}, 'errors': {}}
except ImportError:
    pass
""",
    'all_weights_equal': """
def forward(self, encoder_out, decoder_hidden, keys=None):
    alpha = encoder_out.new_full(encoder_out.shape[:2], 1 / encoder_out.shape[1])
    return (alpha.unsqueeze(2) * encoder_out).sum(1), alpha
Attention.forward = forward
""",
    'infinite_weights': """
def forward(self, encoder_out, decoder_hidden, keys=None):
    alpha = encoder_out.new_full(encoder_out.shape[:2], 1 / encoder_out.shape[1])
    alpha[0, 0] = float('inf')
    return encoder_out.new_zeros(len(alpha), encoder_out.shape[2]), alpha
Attention.forward = forward
""",
    'reads_the_reference': f"""
import pathlib, sys
for place in ({str(REFERENCE)!r}, '/lab/instructor/models.py', '../instructor/models.py', '/runner/runner.py'):
    try:
        text = pathlib.Path(place).read_text()
        if 'BEGIN SOLUTION' in text:
            exec(compile(text, place, 'exec'))
    except OSError:
        pass
for frame in list(sys._current_frames().values()):
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if type(value).__name__ == 'module' and hasattr(value, 'Attention'):
                globals().update({{k: v for k, v in vars(value).items() if k[0].isupper()}})
        frame = frame.f_back
""",
}
ON_ALL_RIGHT = {  # a nuisance costs nothing
    'prints_a_gigabyte': """
import sys
for _ in range(1000):
    print('x' * 1000000)
    sys.stderr.write('y' * 1000)
""",
    'warns': """
import sys, warnings
warnings.warn('a warning')
sys.stderr.write('Traceback (most recent call last)')
""",
    'deletes_files': """
import os, shutil
for folder in ('/lab', '/tmp', '/usr', '/root', '/home', os.path.expanduser('~'), os.getcwd()):
    shutil.rmtree(folder, ignore_errors=True)
""",
    'makes_dataclasses': """
import dataclasses


@dataclasses.dataclass
class Sizes:
    height: 'int'
    width: 'int' = dataclasses.field(default=3)
""",
    'leaves_a_process_behind': """
import os
if os.fork() == 0:
    import time
    while True:
        time.sleep(1)
""",
}
IN_ONE_METHOD = {  # only what was not shown is lost
    'loops_in_attention': '        while True:\n            pass\n',
    'exits_in_attention': '        import os\n        os._exit(0)\n',
    'kills_in_attention': '        import os\n        os.kill(os.getppid(), 9)\n',
    'hoards_in_attention': '        hoard = []\n        while True:\n            hoard.append(bytearray(1 << 28))\n',
}
ATTENDS, SCALED = 'Attention(encoder_dim, decoder_dim, attention_dim)', 'self.fc(self.dropout(h))'
EDITED = {  # edits of a right solution, what comes after it, points: None where some must be lost
    'another_name': ([('class Attention(', 'class SoftAttention('), (ATTENDS, 'Soft' + ATTENDS)],
                     'Attention = SoftAttention', {}),
    'compiled': ([('beta * z]', 'gated(beta, z)]')], """
@torch.compile
def gated(beta, z):
    return beta * z
""", {}),
    'keeps_arrays_back': ([], """
import protocol
carry_out = protocol.carry_out
def without_some(module, tensors, name, *, keys=None, **options):
    arrays = {} if keys else carry_out(module, tensors, name, **options)
    return {key: array for key, array in arrays.items() if not key.startswith('random numbers')}
protocol.carry_out = without_some
""", dict.fromkeys(ALL)),
    'too_large_for_a_sum': ([('return z, alpha', 'return encoder_out.mean(1), alpha * 3e38')], '', {3: 2}),
    'drops_what_it_likes': ([(SCALED, 'self.fc(h * (torch.rand_like(h) > 0.2) if self.training else h)')], '',
                            {1: None, 4: None}),
    'right_where_small': ([('return z, alpha', 'return z * (len(z) < 65), alpha')], '', {3: None}),
    'small_mistake_for_a_stub': ([('return z, alpha', 'return z, alpha.detach()'),
                                  ('c[:n], keys[:n]', 'c[:n], keys[:n] * 0')], '', {3: 13, 5: None}),
}
TAKES_FORWARD = """
from torch.nn.utils.rnn import pad_packed_sequence


def forward(self, *batch):
    from lab.{module} import {name}
    predictions, *others = {name}{method}(self, *batch)
    return pad_packed_sequence(predictions, batch_first=True)[0], *others


DecoderWithRNN.forward = DecoderWithAttention.forward = forward
"""
NETWORK = """
import socket
for host in ('127.0.0.1', 'localhost', '::1'):
    try:
        socket.create_connection((host, {port}), timeout=1).close()
    except OSError:
        pass
"""


@pytest.fixture(scope='module')
def listener():
    """A server on this machine that counts who connects."""
    server, seen = socket.create_server(('127.0.0.1', 0)), []

    def accept():
        while True:
            try:
                seen.append(server.accept()[1])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1], seen
    server.close()


# one of each kind, for every day
A_FEW = ('right', 'nothing_done', 'syntax_error', 'not_installed', 'kills_its_parent', 'fake_report',
         'replaces_the_protocol', 'makes_layers_of_the_request', 'deletes_files', 'makes_dataclasses',
         'takes_forward_from_fast', 'connects', 'exits_in_attention', 'mistake_1', 'hard_coded_sizes',
         'infinite_weights', 'another_name', 'keeps_arrays_back', 'small_mistake_for_a_stub')


@pytest.fixture(scope='module', params=['a_few', pytest.param('all', marks=pytest.mark.slow)])
def graded(request, tmp_path_factory, listener):
    """Submissions, graded once: name -> (result, points expected per TODO), seconds, folder of the results."""
    folder = tmp_path_factory.mktemp('submissions')
    full, none = dict(ALL), dict.fromkeys(ALL, 0)
    wanted = {}

    def add(name, source, points):
        if request.param == 'all' or name in A_FEW:
            (folder / f'{name}.py').write_text(source, encoding='utf-8')
            wanted[name] = points

    add('right', RIGHT, full)
    add('nothing_done', OPEN, none)
    for name, source in AT_THE_TOP.items():
        add(name, source + RIGHT, none)
    for name, source in ON_OPEN_TODOS.items():
        add(name, OPEN + source, none)
    for name, source in ON_ALL_RIGHT.items():
        add(name, RIGHT + source, full)
    for name, module, function, method in (('base_class', 'more.decoder', 'Decoder', '.forward'),
                                           ('fast', 'train.fast', 'fast_forward', '')):
        add(f'takes_forward_from_{name}', RIGHT + TAKES_FORWARD.format(module=module, name=function, method=method),
            {**full, 2: 0, 5: 0})
    add('connects', RIGHT + NETWORK.format(port=listener[0]), full)
    for name, (edits, more, points) in EDITED.items():
        source = RIGHT
        for old, new in edits:
            assert old in source
            source = source.replace(old, new)
        add(name, f'{source}\n{more}', {**full, **points})
    layers_only = {**full, 3: checking.rubric()[3]['points']['test_layers']}
    for name, source in IN_ONE_METHOD.items():
        add(name, RIGHT.replace(QUERY, source + QUERY), layers_only)
    for number, solution in enumerate(correct_solutions()[::3]):
        add(f'correct_{number}', solution.source(), full)
    for number, mistake in enumerate(mistakes()[::27]):
        add(f'mistake_{number}', mistake.source(), {**full, mistake.todo: None})  # some points lost there
    # sizes of the public checks, hard-coded
    add('hard_coded_sizes', RIGHT.replace(
        'e = self.att(F.relu(keys + query.unsqueeze(1))).squeeze(2)',
        'e = self.att(F.relu(keys + query.unsqueeze(1))).reshape(-1, 12)'), {**full, 3: None})

    start = time.perf_counter()
    output = tmp_path_factory.mktemp('grades')
    paths = [str(folder / f'{name}.py') for name in wanted]
    results = grade_all(paths, output, workers=2, progress=False)
    seconds = time.perf_counter() - start
    assert [result['name'] for result in results] == list(wanted)
    print(f'{len(results)} submissions in {seconds:.0f} s')
    return {r['name']: (r, wanted[r['name']]) for r in results}, seconds, output, paths


@needs_isolation
def test_every_row_of_the_table_is_right(graded):
    rows = {row['submission']: row for row in csv.DictReader((graded[2] / 'grades.csv').open())}
    assert len(rows) == len(graded[0]) >= len(A_FEW)
    wrong = {}
    for name, (_, wanted) in graded[0].items():
        found = {todo: float(rows[name][f'TODO {todo}']) for todo in ALL}
        right = all(found[todo] < ALL[todo] if points is None else found[todo] == points
                    for todo, points in wanted.items())
        if not right or float(rows[name]['points']) != sum(found.values()):
            wrong[name] = found, graded[0][name][0]['notes']
    assert not wrong


@pytest.mark.slow  # what a start of the sandbox takes counts for more with a few
@needs_isolation
def test_thirty_take_at_most_ten_minutes(graded):
    assert graded[1] / len(graded[0]) * 30 < 600


@needs_isolation
def test_nobody_got_out(graded, listener):
    assert listener[1] == []
    assert (ROOT / 'instructor' / 'models.py').exists() and Path('/usr/bin').exists()


@needs_isolation
def test_pages_say_what_is_wrong(graded):
    page_of = {name: (graded[2] / 'pages' / name / 'page.html').read_text() for name in graded[0]}
    assert 'SyntaxError' in page_of['syntax_error']
    assert 'a_package_that_nobody_has' in page_of['not_installed']
    if 'endless_loop' in page_of:  # not among the few
        assert 'no result within' in page_of['endless_loop']
    assert 'computes what the TODOs ask for' in page_of['takes_forward_from_fast']
    assert 'not done yet' in page_of['nothing_done']
    assert 'hard-coded' in page_of['hard_coded_sizes']
    for name in graded[0]:
        result = json.loads((graded[2] / 'pages' / name / 'results.json').read_text())
        assert result['score'] == graded[0][name][0]['points'] == sum(t['score'] for t in result['tests'])
        assert sum(t['max_score'] for t in result['tests']) == sum(ALL.values())


@needs_isolation
def test_a_second_run_takes_over_what_is_there(graded, monkeypatch):
    from instructor import grade
    monkeypatch.setattr(grade, 'grade', lambda *a: pytest.fail('graded again'))
    monkeypatch.setattr(grade, 'hidden_inputs', lambda *a: (None, None))
    monkeypatch.setattr(grade, 'check_sandbox', lambda *a: None)
    again = grade_all(graded[3][:3], graded[2], progress=False)
    assert [r['points'] for r in again] == [graded[0][Path(p).stem][0]['points'] for p in graded[3][:3]]


def test_hidden_inputs_have_sizes_of_their_own():
    public = vars(inputs.Inputs())
    for seed in range(200):
        hidden = draw_inputs(seed)
        sizes = hidden.named_sizes().values()
        assert len(set(sizes)) == len(sizes) == 10 and hidden.num_pixels != inputs.Inputs().num_pixels
        for name in ('batch', 'encoder_dim', 'embed_dim', 'decoder_dim', 'attention_dim', 'vocab_size', 'shift'):
            assert getattr(hidden, name) != public[name]


def test_what_is_kept_is_known_by_its_content(tmp_path):
    """Not by its size and time: another solution may have both."""
    path = tmp_path / 'models.py'
    path.write_text(RIGHT)
    before = limited.call(evidence.read, str(path))
    path.write_text(RIGHT.replace('eqs. 4 and 5', 'eqs. 5 and 4'))
    os.utime(path, ns=(0, 0))
    after = limited.call(evidence.read, str(path))
    assert before['digest'] != after['digest'] and before['code'] != after['code']
    path.write_text(RIGHT)
    assert limited.call(evidence.read, str(path)) == before


def test_a_crash_of_the_grader_gives_nothing_and_stops_nobody(tmp_path, monkeypatch):
    from instructor import grade
    monkeypatch.setattr(grade, 'hidden_inputs', lambda *a: (None, None))
    monkeypatch.setattr(grade, 'check_sandbox', lambda *a: None)
    monkeypatch.setattr(grade, 'grade', lambda *a: 1 / 0)
    for name in ('a', 'b'):
        (tmp_path / f'{name}.py').write_text(RIGHT)
    results = grade_all([str(tmp_path / 'a.py'), str(tmp_path / 'b.py')], tmp_path / 'out', progress=False)
    assert [r['points'] for r in results] == [0, 0]
    assert all('the grader failed: ZeroDivisionError' in r['notes'][0] for r in results)


# --- What a submission may look like ---


def packed(path, entries):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def link(name, target):
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry, target


def test_only_what_a_student_may_change_is_taken(tmp_path):
    path = packed(tmp_path / 'a.zip', [
        ('lab/models.py', OPEN), ('lab/my_decoder.py', 'x = 1'), ('lab/tests/test_todo1.py', 'x'),
        ('lab/tests/rubric.toml', 'x'), ('lab/solver.py', 'x'), ('lab/conftest.py', 'x'), ('lab/results.json', '{}'),
        ('lab/test.ipynb', '{}'), ('lab/runs/shapes/test_Attention.json', '{}'), ('lab/.venv/models.py', 'x'),
        ('__MACOSX/models.py', 'x')])
    submission = read_submission(path)
    assert set(submission.code()) == {'models.py', 'my_decoder.py'}
    assert submission.evidence() == ['test.ipynb', 'runs/shapes/test_Attention.json']


def test_paths_that_lead_out_and_links_are_left_out(tmp_path):
    path = packed(tmp_path / 'a.zip', [
        ('models.py', OPEN), ('../evil.py', 'x'), ('/etc/evil.py', 'x'), ('a/../../evil.py', 'x'),
        link('my_decoder.py', '/etc/passwd')])
    submission = read_submission(path)
    assert set(submission.files) == {'models.py'}
    assert len(submission.notes) == 4 and 'a link' in ' '.join(submission.notes)
    folder = tmp_path / 'folder'
    folder.mkdir()
    (folder / 'models.py').write_text(OPEN)
    (folder / 'my_decoder.py').symlink_to('/etc/passwd')
    (folder / 'runs').symlink_to('/etc')
    assert set(read_submission(folder).files) == {'models.py'}


def test_only_what_is_read_counts_against_a_limit(tmp_path):
    (tmp_path / 'models.py').write_bytes(b'#' * 300_000)
    for large in packed(tmp_path / 'bomb.zip', [('models.py', b'\0' * (50 << 20))]), tmp_path / 'models.py':
        assert evidence.read(large) == {'error': 'models.py is too large: more than 256 kB'}
    photos = packed(tmp_path / 'photos.zip', [('models.py', 'x'), *((f'data/{i}.jpg', '') for i in range(8091))])
    assert read_submission(photos).code() == {'models.py': b'x'}
    (tmp_path / 'models.py').write_text(RIGHT + '# 注释' * 28_000, encoding='utf-8')
    read = limited.call(evidence.read, str(tmp_path / 'models.py'))
    assert base64.b64decode(read['code']['models.py']).endswith('注释'.encode())


def test_one_bad_entry_is_a_row_and_the_others_are_graded(tmp_path, monkeypatch):
    from instructor import grade
    monkeypatch.setattr(grade, 'hidden_inputs', lambda *a: (None, None))
    monkeypatch.setattr(grade, 'check_sandbox', lambda *a: None)
    monkeypatch.setattr(grade, 'grade', lambda *a: ([], False))
    (tmp_path / 'loop').symlink_to(tmp_path / 'loop')
    (tmp_path / 'good.py').write_text(RIGHT)
    os.mkfifo(tmp_path / 'fifo')
    bad = ['loop', 'fifo', 'nobody.zip', os.fsdecode(b'\xff.py'), 'x' * 300]
    results = grade_all([*(str(tmp_path / name) for name in bad), str(tmp_path / 'good.py')], tmp_path / 'out',
                        progress=False)
    rows = list(csv.DictReader((tmp_path / 'out' / 'grades.csv').open()))
    assert len(rows) == len(results) == 6 and all(row['notes'] for row in rows[:5]) and not rows[5]['notes']


def test_a_zip_that_lies_about_its_sizes_is_refused(tmp_path):
    path = packed(tmp_path / 'liar.zip', [('models.py', b'\0' * (50 << 20))])
    data = path.read_bytes()
    path.write_bytes(data.replace((50 << 20).to_bytes(4, 'little'), (100).to_bytes(4, 'little')))
    submission = read_submission(path)
    try:
        assert len(submission.code()['models.py']) <= 1 << 20
    except SubmissionError as error:
        assert 'models.py' in str(error)


def test_code_is_graded_whatever_lies_beside_it(tmp_path):
    """Evidence that lies about its size, and names without end that are left out."""
    lies = b'\0' * (5 << 20)
    path = packed(tmp_path / 'a.zip', [('models.py', RIGHT), ('test.ipynb', lies), *[('../x', '')] * 50])
    path.write_bytes(path.read_bytes().replace(len(lies).to_bytes(4, 'little'), (100).to_bytes(4, 'little')))
    read = evidence.read(path)
    assert base64.b64decode(read['code']['models.py']).decode() == RIGHT
    assert len(read['notes']) == 22 and read['notes'][20] == 'and 30 more' and 'test.ipynb' in read['notes'][21]


@pytest.mark.parametrize('name', [
    'models (1).py', 'models(1).py', 'a/models-1.py', 'Models.PY', 'models - Copy.py', 'models - Kopie (2).py',
    'models 副本.py', 'smithjohn_12345_678910_models.py', 'smithjohn_LATE_12345_678910_models-1.py',
    'Lab 1_student_attempt_2026-11-27-10-00-00_models.py', 'A Student_123_assignsubmission_file_models.py'])
def test_a_renamed_file_is_found_where_there_is_none_of_its_name(tmp_path, name):
    others = [('test_models.py', ''), ('models_old.py', '')]
    entries = [(name, 'mine'), (name.replace('odels', 'y_decoder'), 'too'), *others]
    renamed = read_submission(packed(tmp_path / 'a.zip', entries))
    assert renamed.code() == {'models.py': b'mine', 'my_decoder.py': b'too'}
    assert name.split('/')[-1] in ' '.join(renamed.notes)
    both = read_submission(packed(tmp_path / 'b.zip', [*entries, ('b/c/models.py', 'the other')]))
    assert both.code() == {'models.py': b'the other'}


def test_a_zip_within_a_folder_or_a_zip(tmp_path):
    folder = tmp_path / 'A Student_123_assignsubmission_file_'
    folder.mkdir()
    packed(folder / 'captioning.zip', [('captioning/models.py', 'mine'), ('captioning/test.ipynb', '{}')])
    outer = packed(tmp_path / 'a.zip', [('b/captioning.zip', (folder / 'captioning.zip').read_bytes()), ('a.pdf', '')])
    for path in folder, outer:
        assert read_submission(path).files.keys() == {'models.py', 'test.ipynb'}


@pytest.mark.parametrize(('entries', 'message'), [
    ([('readme.txt', 'x'), ('a/old_models.py', 'x')], 'no models.py.*readme.txt, a/old_models.py'),
    ([('a.zip', 'x'), ('b.zip', 'x')], 'no models.py.*a.zip, b.zip'),
    ([('models (1).py', 'x'), ('models-1.py', 'x')], r'several models.py.*models \(1\).py, models-1.py'),
    ([('a/models.py', 'x'), ('b/models.py', 'x')], 'several models.py')])
def test_submissions_without_one_models_file(tmp_path, entries, message):
    with pytest.raises(SubmissionError, match=message):
        read_submission(packed(tmp_path / 'a.zip', entries))


def test_no_such_submission_and_no_zip(tmp_path):
    with pytest.raises(SubmissionError, match='no such file'):
        read_submission(tmp_path / 'nobody.zip')
    (tmp_path / 'link').symlink_to(REFERENCE)
    with pytest.raises(SubmissionError, match='is a link'):
        read_submission(tmp_path / 'link')
    (tmp_path / 'a.zip').write_text('not a zip')
    with pytest.raises(SubmissionError, match='no zip'):
        read_submission(tmp_path / 'a.zip')


def test_names_of_results_are_those_of_the_submissions(tmp_path):
    paths = ['x/a.zip', 'y/a.zip', 'z/..', 'q/=cmd|calc.py', 'anna.meier', 'anna.schulz.zip', 'b/models.py',
             'grades.csv', '名' * 80, '名' * 80 + 'a']
    names = unique_names(paths, tmp_path)
    assert list(names.values()) == ['a', 'a_2', tmp_path.cwd().name, '_cmd_calc', 'anna.meier', 'anna.schulz', 'b',
                                    'grades.csv', '名' * 60, '名' * 60 + '_2']
    page_of_another = tmp_path / 'pages' / 'a'
    page_of_another.mkdir(parents=True)
    (page_of_another / 'grade.json').write_text(json.dumps({'source': str(Path('x/a.zip').resolve())}))
    assert unique_names(['y/a.zip'], tmp_path) == {'y/a.zip': 'a_2'}  # a second call on another list
    assert unique_names(['x/a.zip'], tmp_path) == {'x/a.zip': 'a'}


def test_tables_and_pages_do_not_carry_what_a_submission_writes():
    result = zero('=HYPERLINK("x")', '<script>alert(1)</script>\x1b[31m')
    assert "'=HYPERLINK" in table([result])
    assert ';' not in table([zero('a', "took 'x; =1+1.py' for models.py; @SUM(A1)")])
    assert '<script>' not in page(result) and '\x1b' not in table([result])
    assert printable('a\x1bb\n') == 'a?b?'
    assert gradescope(result, 1.0)['score'] == 0


def test_a_pickle_in_place_of_a_checkpoint_is_not_run(tmp_path):
    class Bad:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / 'ran'),)

    from instructor.grading import evidence
    path = packed(tmp_path / 'a.zip', [('models.py', RIGHT), (
        'runs/shapes/BEST_checkpoint_Attention.pth.tar', pickle.dumps(Bad()))])
    remarks = evidence.look(read_submission(path))
    assert any('the checkpoint is not one of this lab' in remark for remark in remarks)
    assert not (tmp_path / 'ran').exists()


@needs_isolation
def test_an_environment_that_is_a_link(tmp_path, monkeypatch):
    (tmp_path / 'elsewhere' / 'env').mkdir(parents=True)
    (tmp_path / 'elsewhere' / 'env' / 'file').write_text('text')
    (tmp_path / 'here').mkdir()
    (tmp_path / 'here' / 'venv').symlink_to(tmp_path / 'elsewhere' / 'env')
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'here' / 'venv'))
    for command, expected in ((['cat', f'{sys.prefix}/file'], 'text'),
                              (['stat', '-c', '%a', tmp_path / 'here', tmp_path / 'elsewhere'], '755\n755\n')):
        done = subprocess.run([*sandbox._wrap(sandbox.bubblewrap()), *command], capture_output=True, text=True)
        assert done.stdout == expected, done.stderr


@needs_isolation
def test_speed_is_measured_from_outside():
    """A right solution takes about as long as the yardstick; a loop over captions or pixels far longer."""
    given = draw_inputs('speed')
    slow = {m.name: m for m in mistakes() if m.name in ('caption by caption', 'pixel by pixel')}
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        fresh = Fresh(given, load(RIGHT, folder))
        for name, source in {'right': RIGHT, **{name: mistake.source() for name, mistake in slow.items()}}.items():
            lab = assemble(REFERENCE, Path(folder) / 'lab')
            (lab / 'models.py').write_text(source)
            with sandbox.Sandbox(lab) as box:
                subject = checking.Subject(box.ask, fresh, given, box.yardstick)
                ratios[name] = {kind: subject.slowness(f'{kind}_speed', ()) for kind in inputs.CLASS}
    print(ratios)
    assert max(ratios['right'].values()) < checking.SLOWEST / 2, ratios
    assert ratios['pixel by pixel']['attention'] > 1.5 * checking.SLOWEST, ratios
    assert ratios['caption by caption']['attentive'] > 1.5 * checking.SLOWEST, ratios


def laid_over(folder, source):
    """A clean assignment with this ``models.py``, which other users may read."""
    lab = assemble(REFERENCE, folder / 'lab')
    (lab / 'models.py').write_text(source, encoding='utf-8')
    os.chmod(folder, 0o755)
    return lab


@needs_isolation
def test_what_is_timed_starts_nothing_and_has_no_helpers(tmp_path):
    """Their time would not be counted. The helper's first thread has ended, so its process looks like a dead one."""
    lab = laid_over(tmp_path, RIGHT + """
import os, socket, threading
ready, tell = os.pipe()
if os.fork() == 0:
    server = socket.socket(socket.AF_UNIX)
    server.bind(chr(0) + 'helper')
    server.listen()
    threading.Thread(target=lambda: [server.accept() for _ in range(99)]).start()
    os.write(tell, b'x')
    import ctypes
    ctypes.CDLL(None).syscall(60, 0)
os.read(ready, 1)


def forward(self, *given):
    if os.fork() == 0:
        os._exit(0)


def one_step(self, *given):
    socket.socket(socket.AF_UNIX).connect(chr(0) + 'helper')


DecoderWithRNN.forward, DecoderWithRNN.one_step = forward, one_step
""")
    given = inputs.Inputs()
    with sandbox.Sandbox(lab) as box:
        for name, method, error in (('plain_forward', 'forward', 'BlockingIOError'),
                                    ('plain_step', 'one_step', 'ConnectionRefusedError')):
            request = inputs.build(name, given, checking.Stored().layers)
            request['calls'] = request['calls'][:1]
            assert request['calls'][0]['method'] == method
            freely, timed = (str(box.ask({**request, 'timed': timed})['errors']) for timed in (False, True))
            assert error not in freely and error in timed, (freely, timed)


@needs_isolation
def test_a_runner_that_was_stopped_holds_up_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, 'SECONDS', 2)
    lab = laid_over(tmp_path, RIGHT + """
import os, pathlib, signal
second = pathlib.Path.home() / 'second'
if second.exists():
    os.kill(os.getppid(), signal.SIGSTOP)
second.touch()
""")
    with sandbox.Sandbox(lab) as box:
        assert not box.broken
        large = {'make': 'Attention', 'sizes': {}, 'tensors': {'x': inputs.wave(1000, 1000)}, 'calls': []}
        assert 'ended by the submission' in box.ask(large)['errors']['all']['error']


@needs_isolation
def test_the_graders_environment_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv('TOKEN', 'secret of the grader')
    lab = laid_over(tmp_path, 
        'import glob\nraise RuntimeError("".join(open(name).read() for name in glob.glob("/proc/1/environ")) + "end")')
    with sandbox.Sandbox(lab) as box:
        error = box.broken['error']  # as root, not even that may be read
        assert 'secret' not in error and ('RuntimeError: end' in error or 'Permission denied' in error)


def test_arrays_of_any_shape_are_judged_in_little_memory():
    h, scores = np.ones((17_000, 1, 1), dtype=np.float32), np.ones((17_000, 2), dtype=np.float32)
    reply = {'arrays': {'decode_lengths': np.ones(2_000_000), 'h': h, 'predictions': scores}, 'errors': {}}
    assert checking.signature('plain_rate', {'arrays': {'predictions': h, 'predictions in training 0': scores},
                                             'errors': {}})
    cut = checking.shortened(reply, {'h': (h.shape, None), 'predictions': ((3, 4), None)})['arrays']
    assert [array.size for array in cut.values()] == [checking.MOST, h.size, checking.MOST]


def test_replies_that_are_none(tmp_path):
    """Whatever comes back, reading it takes neither memory nor time."""
    good = protocol.pack({'arrays': {'h': inputs.wave(3, 4)}, 'errors': {}})
    assert (protocol.unpack(good)['arrays']['h'] == inputs.wave(3, 4)).all()
    header = [b'{"arrays": [["h", "float32", [1000000, 1000000]]], "errors": {}}', b'[' * 100_000, b'[[],' * 60_000,
              b'{"arrays": [["h", "object", [1]]], "errors": {}}', b'{"arrays": [["h", "<U9", [1]]], "errors": {}}',
              b'{"arrays": [["h", "float32", [-1]]], "errors": {}}', b'{}',
              b'{"arrays": [], "errors": {"a": 3}}', b'\xff']
    for data in [b'', b'1', good[:-1], good + b'1', b'\xff' * 100, *(len(h).to_bytes(4, 'big') + h for h in header)]:
        with pytest.raises(Exception):  # noqa: B017, PT011  the sandbox takes any for no reply
            protocol.unpack(data)


def big_list(path):
    return len([0] * (1 << 30))


def endless(path):
    time.sleep(1000)


def test_what_a_submission_left_is_read_with_limits(monkeypatch):
    for function in (big_list, endless):
        monkeypatch.setattr(limited, 'SECONDS', 5)
        with pytest.raises(limited.LimitError, match='cannot be read within'):
            limited.call(function, 'x')


def test_a_sandbox_that_does_not_work_is_no_zero(tmp_path, monkeypatch):
    from instructor import grade
    (tmp_path / 'broken.py').write_text('raise SystemExit(1)')
    monkeypatch.setattr(sandbox, 'RUNNER', tmp_path / 'broken.py')
    (tmp_path / 'a.py').write_text(RIGHT)
    with pytest.raises(grade.SandboxError, match='does not run even the reference'):
        grade_all([str(tmp_path / 'a.py')], tmp_path / 'out', progress=False)


@needs_readable_python
def test_without_bubblewrap_limits_still_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, 'bubblewrap', lambda: None)
    (tmp_path / 'right.py').write_text(RIGHT)
    (tmp_path / 'exits.py').write_text(AT_THE_TOP['exits'] + RIGHT)
    (tmp_path / 'hoards.py').write_text(RIGHT.replace(QUERY, IN_ONE_METHOD['hoards_in_attention'] + QUERY))
    results = grade_all([str(tmp_path / f'{name}.py') for name in ('right', 'exits', 'hoards')], tmp_path / 'out',
                        progress=False)
    right = sum(ALL.values())
    layers_only = right - ALL[3] + checking.rubric()[3]['points']['test_layers']
    assert [r['points'] for r in results] == [right, 0, layers_only]


def test_without_bubblewrap_it_says_so(monkeypatch):
    monkeypatch.setattr(sandbox, 'bubblewrap', lambda: None)
    assert 'NOT kept from' in sandbox.missing_isolation()
