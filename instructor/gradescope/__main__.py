"""Gradescope's autograder zip: ``python -m instructor.gradescope`` (``make gradescope``)."""

from pathlib import Path

from instructor.assemble import ROOT, wanted_files
from instructor.handout import pack
from utils import atomic_path

HERE = Path(__file__).resolve().parent
OUTPUT = ROOT / 'build' / 'gradescope' / 'autograder.zip'
LEFT_OUT = ('tests/given/*', 'docs/*', 'docs/images/*', '*.ipynb', 'notes/*', 'report/*', 'README.md')


def autograder():
    """:return: the bytes of the zip: setup.sh, run_autograder, and the lab with the grader in ``lab/``"""
    content = {name: (HERE / name).read_bytes() for name in ('setup.sh', 'run_autograder')}
    paths = {path for path in wanted_files() if not any(path.match(pattern) for pattern in LEFT_OUT)}
    paths |= {path.relative_to(ROOT) for pattern in ('*.py', 'grading/*.py', 'mistakes/*.py', 'mistakes/*.toml')
              for path in (ROOT / 'instructor').glob(pattern)}
    content |= {f'lab/{path.as_posix()}': (ROOT / path).read_bytes() for path in paths}
    return pack(dict(sorted(content.items())), above='')


def main():
    with atomic_path(OUTPUT) as temporary:
        temporary.write_bytes(autograder())
    print(OUTPUT)


if __name__ == '__main__':
    main()
