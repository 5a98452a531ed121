"""Right solutions, mistakes and attacks, graded in one go: every row of the table is right."""

import csv
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import needs_isolation, needs_readable_python

from instructor import grade
from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from instructor.expected import checking, inputs, protocol
from instructor.grade import draw_inputs, grade_all, gradescope, page, table, unique_names, zero
from instructor.grading import limited, sandbox
from instructor.mistakes import correct_solutions, mistakes

RIGHT = REFERENCE.read_text(encoding='utf-8')
OPEN = (ROOT / 'models.py').read_text(encoding='utf-8')
ALL = {todo: sum(entry['points'].values()) for todo, entry in checking.rubric().items()}
NONE = dict.fromkeys(ALL, 0)
LAYERS_ONLY = {**ALL, 3: checking.rubric()[3]['points']['test_layers']}
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
FIXED_WEIGHTS = """
def forward(self, encoder_out, decoder_hidden, keys=None):
    alpha = encoder_out.new_full(encoder_out.shape[:2], 1 / encoder_out.shape[1])
    alpha[0, 0] *= float({!r})
    return (alpha.unsqueeze(2) * encoder_out).sum(1), alpha
Attention.forward = forward
"""
ON_OPEN_TODOS = {
    'writes_results': """
import contextlib, json, os
print('70 passed in 1.00s')
folders = '.', '/tmp', '/lab', '/autograder/results', os.path.expanduser('~')
for place in [*range(1, 60), *(f'{folder}/results.json' for folder in folders)]:
    with contextlib.suppress(OSError), open(place, 'w', closefd=isinstance(place, str)) as file:
        json.dump({'id': 1, 'result': {}, 'score': 70}, file)
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
import contextlib, protocol
with contextlib.suppress(ImportError):
    import checking
    stored = checking.Stored()
    protocol.answer = lambda request, models: {
        'arrays': {name: array for name, (_, array) in stored.expected('plain_step', ()).items()}, 'errors': {}}
""",
    'all_weights_equal': FIXED_WEIGHTS.format('1'),
    'infinite_weights': FIXED_WEIGHTS.format('inf'),
    'reads_the_reference': f"""
import contextlib, pathlib, sys
for place in ({str(REFERENCE)!r}, '/lab/instructor/models.py', '../instructor/models.py', '/runner/runner.py'):
    with contextlib.suppress(OSError):
        text = pathlib.Path(place).read_text()
        if 'BEGIN SOLUTION' in text:
            exec(compile(text, place, 'exec'))
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
import sys, warnings
warnings.warn('a warning')
sys.stderr.write('Traceback (most recent call last)')
for _ in range(1000):
    print('x' * 1000000)
    sys.stderr.write('y' * 1000)
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
import os, time
if os.fork() == 0:
    while True:
        time.sleep(1)
""",
    'connects': """
import contextlib, socket
for host in ('127.0.0.1', 'localhost', '::1'):
    with contextlib.suppress(OSError):
        socket.create_connection((host, PORT), timeout=1).close()
""",
}
IN_ONE_METHOD = {  # only what was not shown is lost
    'loops_in_attention': '        while True:\n            pass\n',
    'exits_in_attention': '        import os\n        os._exit(0)\n',
    'kills_in_attention': '        import os\n        os.kill(os.getppid(), 9)\n',
    'hoards_in_attention': '        hoard = []\n        while True:\n            hoard.append(bytearray(1 << 28))\n',
}
TAKES_FORWARD = """
from torch.nn.utils.rnn import pad_packed_sequence
def forward(self, *batch):
    from lab.{} import {}
    predictions, *others = {}(self, *batch)
    return pad_packed_sequence(predictions, batch_first=True)[0], *others
DecoderWithRNN.forward = DecoderWithAttention.forward = forward
"""
ATTENDS, SCALED = 'Attention(encoder_dim, decoder_dim, attention_dim)', 'self.fc(self.dropout(h))'
SCORES = 'e = self.att(F.relu(keys + query.unsqueeze(1)))'
EDITED = {  # edits of a right solution, what comes after it, other points than all: None where some must be lost
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
    'takes_forward_from_base_class': ([], TAKES_FORWARD.format('more.decoder', 'Decoder', 'Decoder.forward'),
                                      {2: 0, 5: 0}),
    'takes_forward_from_fast': ([], TAKES_FORWARD.format('train.fast', 'fast_forward', 'fast_forward'), {2: 0, 5: 0}),
    'too_large_for_a_sum': ([('return z, alpha', 'return encoder_out.mean(1), alpha * 3e38')], '', {3: 2}),
    'drops_what_it_likes': ([(SCALED, 'self.fc(h * (torch.rand_like(h) > 0.2) if self.training else h)')], '',
                            {1: None, 4: None}),
    'right_where_small': ([('return z, alpha', 'return z * (len(z) < 65), alpha')], '', {3: None}),
    'small_mistake_for_a_stub': ([('return z, alpha', 'return z, alpha.detach()'),
                                  ('c[:n], keys[:n]', 'c[:n], keys[:n] * 0')], '', {3: 13, 5: None}),
    'hard_coded_sizes': ([(f'{SCORES}.squeeze(2)', f'{SCORES}.reshape(-1, 12)')], '', {3: None}),  # the public ones
}
# one of each kind, for every day
A_FEW = ('right', 'nothing_done', 'syntax_error', 'not_installed', 'kills_its_parent', 'writes_results',
         'replaces_the_protocol', 'makes_layers_of_the_request', 'deletes_files', 'makes_dataclasses',
         'takes_forward_from_fast', 'connects', 'exits_in_attention', 'mistake_27', 'pixel_by_pixel_3',
         'hard_coded_sizes', 'infinite_weights', 'another_name', 'keeps_arrays_back', 'small_mistake_for_a_stub')


def submissions(port):
    """Name -> source of models.py, points per TODO: None where some must be lost."""
    found = {'right': (RIGHT, ALL), 'nothing_done': (OPEN, NONE)}
    found |= {name: (source + RIGHT, NONE) for name, source in AT_THE_TOP.items()}
    found |= {name: (OPEN + source, NONE) for name, source in ON_OPEN_TODOS.items()}
    found |= {name: (RIGHT + source.replace('PORT', str(port)), ALL) for name, source in ON_ALL_RIGHT.items()}
    found |= {name: (RIGHT.replace(QUERY, source + QUERY), LAYERS_ONLY) for name, source in IN_ONE_METHOD.items()}
    for name, (edits, more, points) in EDITED.items():
        source = RIGHT
        for old, new in edits:
            assert old in source
            source = source.replace(old, new)
        found[name] = f'{source}\n{more}', {**ALL, **points}
    found |= {f'correct_{number}': (solution.source(), ALL) for number, solution in enumerate(correct_solutions()[::3])}
    for number, mistake in enumerate(mistakes()):
        points = checking.rubric()[mistake.todo]['points']
        if mistake.name in ('pixel by pixel', 'caption by caption'):  # right, but loops
            name = f'{mistake.name} {mistake.todo}'.replace(' ', '_')
            found[name] = mistake.source(), {**ALL, mistake.todo: ALL[mistake.todo] - points['test_speed']}
        elif number % 27 == 0:
            found[f'mistake_{number}'] = mistake.source(), {**ALL, mistake.todo: None}
    return found


@pytest.fixture(scope='module')
def listener():
    """A server on this machine, to which nobody has connected."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture(scope='module', params=['a_few', pytest.param('all', marks=pytest.mark.slow)])
def graded(request, tmp_path_factory, listener):
    """Submissions, graded once: name -> (result, points expected per TODO); their paths; folder of the results."""
    folder, output = tmp_path_factory.mktemp('submissions'), tmp_path_factory.mktemp('grades')
    wanted = submissions(port=listener.getsockname()[1])
    wanted = {name: wanted[name] for name in (wanted if request.param == 'all' else A_FEW)}
    for name, (source, _) in wanted.items():
        (folder / f'{name}.py').write_text(source, encoding='utf-8')
    paths = [str(folder / f'{name}.py') for name in wanted]
    results = grade_all(paths, output, workers=2)
    assert [result['name'] for result in results] == list(wanted)
    return {result['name']: (result, wanted[result['name']][1]) for result in results}, paths, output


@needs_isolation
def test_every_row_of_the_table_is_right(graded):
    rows = {row['submission']: row for row in csv.DictReader((graded[2] / 'grades.csv').open())}
    assert len(rows) == len(graded[0]) >= len(A_FEW)
    wrong = {}
    for name, (result, wanted) in graded[0].items():
        found = {todo: float(rows[name][f'TODO {todo}']) for todo in ALL}
        right = all(found[todo] < ALL[todo] if points is None else found[todo] == points
                    for todo, points in wanted.items())
        if not right or float(rows[name]['points']) != sum(found.values()):
            wrong[name] = found, result['notes']
    assert not wrong


@needs_isolation
def test_nobody_got_out(graded, listener):
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert REFERENCE.exists() and Path('/usr/bin').exists()


@needs_isolation
def test_pages_say_what_is_wrong(graded):
    for name, said in (('syntax_error', 'SyntaxError'), ('not_installed', 'a_package_that_nobody_has'),
                       ('takes_forward_from_fast', 'lab.train.fast'), ('nothing_done', 'not done yet'),
                       ('hard_coded_sizes', 'hard-coded'), ('endless_loop', '15 seconds')):
        if name in graded[0]:
            assert said in (graded[2] / 'pages' / name / 'page.html').read_text()
    for name, (result, _) in graded[0].items():
        of_gradescope = json.loads((graded[2] / 'pages' / name / 'results.json').read_text())
        assert of_gradescope['score'] == result['points'] == sum(t['score'] for t in of_gradescope['tests'])
        assert sum(t['max_score'] for t in of_gradescope['tests']) == sum(ALL.values())
        assert of_gradescope['stdout_visibility'] == 'hidden'


@pytest.fixture
def grade_by(monkeypatch):
    """``grade_by(function)``: it grades in the place of the sandbox."""
    monkeypatch.setattr(grade, 'hidden_inputs', lambda *_: (None, None))
    monkeypatch.setattr(grade, 'check_sandbox', lambda *_: None)
    return lambda function: monkeypatch.setattr(grade, 'grade', function)


@pytest.mark.parametrize('ran_out', [False, True])
def test_a_second_run_grades_again_only_what_ran_out_of_time(tmp_path, grade_by, ran_out):
    seen = []
    grade_by(lambda *given: (seen.append(given) or [], ran_out))
    (tmp_path / 'a.py').write_text(RIGHT)
    for _ in range(2):
        grade_all([str(tmp_path / 'a.py')], tmp_path / 'out')
    assert len(seen) == 1 + ran_out


def test_a_bad_entry_or_a_crash_of_the_grader_is_a_row_and_the_others_are_graded(tmp_path, grade_by):
    def crashing(code, *_):
        return ([1 / 0] if code['models.py'] == b'# crash' else []), False

    grade_by(crashing)
    (tmp_path / 'loop').symlink_to(tmp_path / 'loop')
    os.mkfifo(tmp_path / 'fifo')
    (tmp_path / 'crash.py').write_text('# crash')
    (tmp_path / 'good.py').write_text(RIGHT)
    names = ['loop', 'fifo', 'nobody.zip', os.fsdecode(b'\xff.py'), 'x' * 300, 'crash.py', 'good.py']
    results = grade_all([str(tmp_path / name) for name in names], tmp_path / 'out')
    rows = list(csv.DictReader((tmp_path / 'out' / 'grades.csv').open()))
    assert len(rows) == len(results) == 7 and [bool(row['notes']) for row in rows] == [True] * 6 + [False]
    assert 'ZeroDivisionError' in rows[5]['notes'] and all(row['points'] == '0' for row in rows)


def test_hidden_inputs_have_sizes_of_their_own():
    public = vars(inputs.Inputs())
    for seed in range(200):
        hidden = draw_inputs(seed)
        sizes = hidden.named_sizes().values()
        assert len(set(sizes)) == len(sizes) == 10 and hidden.num_pixels != inputs.Inputs().num_pixels
        for name in ('batch', 'encoder_dim', 'embed_dim', 'decoder_dim', 'attention_dim', 'vocab_size', 'shift'):
            assert getattr(hidden, name) != public[name]


# --- What is written ---


def test_names_of_results_are_those_of_the_submissions():
    names = {'x/a.zip': 'a', 'y/a.zip': 'a_2', 'z/..': Path.cwd().name, 'q/=cmd|calc.py': '_cmd_calc',
             'anna.meier': 'anna.meier', 'anna.schulz.zip': 'anna.schulz', 'b/models.py': 'b',
             '名' * 80: '名' * 60, '名' * 80 + 'a': '名' * 60 + '_2'}
    assert unique_names(names) == names


def test_tables_and_pages_do_not_carry_what_a_submission_writes():
    result = zero('=HYPERLINK("x")', '<script>alert(1)</script>\x1b[31m; @SUM(A1)')
    for text in (page(result), table([result]), gradescope(result)['output']):
        assert '\x1b' not in text and 'alert' in text
    assert '<script>' not in page(result)
    row, = csv.reader(table([result]).splitlines()[1:])
    assert not any(cell.startswith('=') or ';' in cell for cell in row)


# --- The sandbox ---


def laid_over(folder, source):
    """A clean assignment with this ``models.py``, which other users may read."""
    lab = assemble(REFERENCE, folder / 'lab')
    (lab / 'models.py').write_text(source, encoding='utf-8')
    os.chmod(folder, 0o755)
    return lab


@needs_isolation
def test_an_environment_that_is_a_link(tmp_path, monkeypatch):
    """Whatever the rights of the folders above it."""
    (tmp_path / 'env').symlink_to(Path(sys.prefix).resolve())
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'env'))
    monkeypatch.setattr(sys, 'executable', str(tmp_path / 'env' / 'bin' / 'python'))
    with sandbox.Sandbox(assemble(REFERENCE, tmp_path / 'lab')) as box:
        assert not box.broken


@pytest.mark.slow
@needs_isolation
def test_speed_is_measured_from_outside(tmp_path):
    """Far from the limit on either side: a right solution takes about as long as the yardstick, a loop far longer."""
    slow = {mistake.name: mistake.source() for mistake in mistakes()}
    for source, kinds in ((RIGHT, inputs.CLASS), (slow['pixel by pixel'], ['attention']),
                          (slow['caption by caption'], ['attentive'])):
        with sandbox.Sandbox(laid_over(tmp_path, source)) as box:
            subject = checking.Subject(box.ask, checking.Stored(), inputs.Inputs(), box.yardstick)
            ratios = [subject.slowness(f'{kind}_speed', ()) for kind in kinds]
        assert max(ratios) < checking.SLOWEST / 2 if source == RIGHT else min(ratios) > 1.5 * checking.SLOWEST, ratios


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
    with sandbox.Sandbox(lab) as box:
        for name, method, error in (('plain_forward', 'forward', 'BlockingIOError'),
                                    ('plain_step', 'one_step', 'ConnectionRefusedError')):
            request = inputs.build(name, inputs.Inputs(), checking.Stored().layers)
            request['calls'] = request['calls'][:1]
            assert request['calls'][0]['method'] == method
            freely, timed = (str(box.ask({**request, 'timed': timed})['errors']) for timed in (False, True))
            assert error not in freely and error in timed, (freely, timed)


@needs_isolation
def test_a_runner_that_was_stopped_holds_up_nobody_and_time_runs_out(tmp_path, monkeypatch):
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
        monkeypatch.setattr(sandbox, 'IN_ALL', 2)
        box.ran_out, spent = False, box.spent
        assert box.ask(large)['errors'] and box.ran_out and box.spent == spent  # it is not even asked


@needs_isolation
def test_the_graders_environment_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv('TOKEN', 'secret of the grader')
    lab = laid_over(tmp_path, 'import glob, os\nraise RuntimeError(str(os.environ) + '
                              '"".join(open(name).read() for name in glob.glob("/proc/1/environ")) + "end")')
    with sandbox.Sandbox(lab) as box:
        error = box.broken['error']  # as root, not even that may be read
        assert 'secret' not in error and (error.endswith('end') or 'Permission denied' in error)


def test_arrays_of_any_shape_are_judged_in_little_memory():
    h, scores = np.ones((17_000, 1, 1), dtype=np.float32), np.ones((17_000, 2), dtype=np.float32)
    reply = {'arrays': {'decode_lengths': np.ones(2_000_000), 'h': h, 'predictions': scores}, 'errors': {}}
    assert checking.signature('plain_rate', {'arrays': {'predictions': h, 'predictions in training 0': scores},
                                             'errors': {}})
    cut = checking.shortened(reply, {'h': (h.shape, None), 'predictions': ((3, 4), None)})['arrays']
    assert [array.size for array in cut.values()] == [checking.MOST, h.size, checking.MOST]


def test_replies_that_are_none():
    """Whatever comes back, reading it takes neither memory nor time."""
    good = protocol.pack({'arrays': {'h': inputs.wave(3, 4)}, 'errors': {}})
    assert (protocol.unpack(good)['arrays']['h'] == inputs.wave(3, 4)).all()
    headers = [b'{"arrays": [["h", "float32", [1000000, 1000000]]], "errors": {}}', b'[' * 100_000, b'[[],' * 60_000,
               b'{"arrays": [["h", "object", [1]]], "errors": {}}', b'{"arrays": [["h", "<U9", [1]]], "errors": {}}',
               b'{"arrays": [["h", "float32", [-1]]], "errors": {}}', b'{}',
               b'{"arrays": [], "errors": {"a": 3}}', b'\xff']
    for data in [b'', b'1', good[:-1], good + b'1', b'\xff' * 100, *(len(h).to_bytes(4, 'big') + h for h in headers)]:
        with pytest.raises(Exception):  # noqa: B017  the sandbox takes any for no reply
            protocol.unpack(data)


def big_list(path):
    return len([0] * (1 << 30))


def endless(path):
    time.sleep(1000)


@pytest.mark.parametrize('function', [big_list, endless])
def test_what_a_submission_left_is_read_with_limits(monkeypatch, function):
    monkeypatch.setattr(limited, 'SECONDS', 5)
    with pytest.raises(limited.LimitError):
        limited.call(function, 'x')


def test_a_sandbox_that_does_not_work_is_no_zero(tmp_path, monkeypatch):
    (tmp_path / 'broken.py').write_text('raise SystemExit(1)')
    monkeypatch.setattr(sandbox, 'RUNNER', tmp_path / 'broken.py')
    (tmp_path / 'a.py').write_text(RIGHT)
    with pytest.raises(grade.SandboxError, match='the reference'):
        grade_all([str(tmp_path / 'a.py')], tmp_path / 'out')


@needs_readable_python
def test_without_bubblewrap_limits_still_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, 'bubblewrap', lambda: None)
    wanted = {'right': (RIGHT, ALL), 'exits': (AT_THE_TOP['exits'] + RIGHT, NONE),
              'hoards': (RIGHT.replace(QUERY, IN_ONE_METHOD['hoards_in_attention'] + QUERY), LAYERS_ONLY)}
    for name, (source, _) in wanted.items():
        (tmp_path / f'{name}.py').write_text(source)
    results = grade_all([str(tmp_path / f'{name}.py') for name in wanted], tmp_path / 'out')
    assert [result['points'] for result in results] == [sum(points.values()) for _, points in wanted.values()]


def test_without_bubblewrap_it_grades_only_if_told_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, 'bubblewrap', lambda: None)
    monkeypatch.setattr(sys, 'argv', ['grade', str(tmp_path), '--output', str(tmp_path / 'out')])
    with pytest.raises(SystemExit, match='--without-isolation'):
        grade.main()
    assert 'NOT' in capsys.readouterr().err and not (tmp_path / 'out').exists()
