"""The recipe of docs/instructors.md, "Changing a TODO", followed in a copy of the repository."""

import re
import shutil
import subprocess

import pytest
from helpers import run_module

from instructor import expected
from instructor.assemble import ROOT
from instructor.expected import checking

PAGE = 'docs/instructors.md'
OLD, NEW = 'f_beta', 'gate'
# another decoder has a layer of this name; the page and this test tell of it
STAYS = {'lab/more/bahdanau.py', 'tests/given/test_papers.py', 'instructor/mistakes/todo9.toml', PAGE,
         'instructor/zh/lab/more/bahdanau.py.po', 'instructor/zh/mistakes/todo9.toml.po',
         'instructor/tests/test_recipe.py', 'weights/photos.safetensors',
         'build/handout/captioning/weights/photos.safetensors'}
STEP, NEW_STEP = '2. The gate: beta', '2. The gate opens or shuts: beta'
TITLE, NEW_TITLE = 'one gated step"', 'one step through a gate"'
POINTS, NEW_POINTS = 'test_gate_scales_what_is_seen = 2', 'test_gate_scales_what_is_seen = 5'
OF_THE_TODO = sum(checking.rubric()[4]['points'].values()) + 3


def files_of(case):
    """The files that the page tells to edit by hand, in its section of this heading."""
    section = (ROOT / PAGE).read_text(encoding='utf-8').split(f'\n### {case}\n')[1].split('\n##')[0]
    return re.findall(r'^- `([^`]+)`:', section, re.M)


def edit(path, old, new):
    text = path.read_text(encoding='utf-8')
    assert re.search(old, text), f'{path} has no {old}'
    path.write_text(re.sub(old, new, text), encoding='utf-8')


def remake(copy, code=0):
    """:return: what it said, without the bar"""
    lines = run_module('instructor.remake', cwd=copy, code=code).splitlines()
    return [line for line in lines if re.match(r'error: |\S+: (written anew|as it was)$', line)]


def copy_of_the_lab(folder):
    """The repository without what runs left in it."""
    def left_out(where, names):
        return {name for name in names if name == '__pycache__' or where == str(ROOT) and (
            name.startswith('.') or name in ('build', 'data', 'runs', 'shared'))}
    return shutil.copytree(ROOT, folder, ignore=left_out)


def test_the_page_names_every_file_with_the_layer():
    """That is not made anew, and does not stay."""
    tracked = subprocess.check_output(['git', 'grep', '-lw', OLD], cwd=ROOT, text=True)
    assert {*tracked.split()} - STAYS - {'models.py'} == {*files_of('One of its layers')}


@pytest.fixture(scope='module')
def recipe(tmp_path_factory):
    """A copy in which text, points and a layer of TODO 4 were changed as the page says; what remake said there."""
    copy = copy_of_the_lab(tmp_path_factory.mktemp('recipe') / 'lab')
    for todo in (1, 2, 3, 5):  # their mistakes take most of the time, and hold nothing of TODO 4
        (copy / f'instructor/mistakes/todo{todo}.toml').write_text('mistake = []\n')
    text, rubric = files_of('Its text')
    points, = files_of('Its points')
    for name, old, new in [(text, STEP, NEW_STEP), (rubric, TITLE, NEW_TITLE), (points, POINTS, NEW_POINTS),
                           *((name, rf'\b{OLD}\b', NEW) for name in files_of('One of its layers'))]:
        edit(copy / name, old, new)
    return copy, remake(copy)


@pytest.mark.slow
def test_all_are_made_anew(recipe):
    copy, lines = recipe
    assert lines == ['models.py: written anew', 'tests/expected.npz: written anew',
                     'tests/bonus/expected.npz: as it was', 'build/handout/captioning.zip: written anew']
    student, handout = (copy / 'models.py').read_text(), copy / 'build/handout/captioning'
    assert f'self.{NEW}  ' in student and NEW_STEP in student and f'self.{NEW} =' not in student
    assert (handout / 'models.py').read_text() == student
    results = (copy / 'tests/expected.npz').read_bytes()
    assert (handout / 'tests/expected.npz').read_bytes() == results
    assert NEW in expected.content_of(results)[0]['layers']['made']['attentive']
    page = (handout / 'ASSIGNMENT.md').read_text()
    assert page.count('one step through a gate |') == 2 and f'one step through a gate | {OF_THE_TODO} |' in page
    found = {path.relative_to(copy).as_posix() for path in copy.rglob('*')
             if path.is_file() and '__pycache__' not in path.parts and OLD.encode() in path.read_bytes()}
    assert found == STAYS


@pytest.mark.slow
def test_the_checks_and_the_faster_form_know_the_new_name(recipe, tmp_path):
    run_module('instructor.assemble', 'instructor/models.py', tmp_path / 'lab', cwd=recipe[0])
    printed = run_module('pytest', '-q', 'tests/test_todo4.py', cwd=tmp_path / 'lab')
    assert re.search(rf'TODO 4  done +{OF_THE_TODO} of {OF_THE_TODO} points .*one step through a gate', printed)
    run_module('pytest', '-q', 'instructor/tests/test_fast.py', '-k', 'sped_up and tutorial', cwd=recipe[0])


@pytest.mark.slow  # each begins anew
@pytest.mark.parametrize(('old', 'new', 'message'), [
    (rf'\b{OLD}\b', NEW, f'there is no {OLD}'),
    (rf'torch.sigmoid\(self.{OLD}', f'torch.tanh(self.{OLD}', 'fails its own test tests/given/test_papers.py::')])
def test_it_stops_where_a_file_was_forgotten_or_an_equation_is_wrong(tmp_path, old, new, message):
    copy = copy_of_the_lab(tmp_path / 'lab')
    before = (copy / 'models.py').read_bytes()
    edit(copy / 'instructor/models.py', old, new)
    said, = remake(copy, code=1)
    assert message in said
    assert (copy / 'models.py').read_bytes() == before and not (copy / 'build').exists()
