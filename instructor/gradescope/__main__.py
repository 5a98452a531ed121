"""Gradescope's autograder zip: ``python -m instructor.gradescope`` (``make gradescope``)."""

import argparse
import io
import zipfile
from pathlib import Path

from instructor.assemble import ROOT, wanted_files
from instructor.handout import PACKED_AT
from utils import atomic_path

HERE = Path(__file__).resolve().parent
LEFT_OUT = ('tests/given/*', 'docs/*', 'docs/images/*', '*.ipynb', 'notes/*', 'report/*', 'README.md')


def autograder():
    """:return: the bytes of the zip: setup.sh, run_autograder, and the lab with the grader in ``lab/``"""
    content = {name: (HERE / name).read_bytes() for name in ('setup.sh', 'run_autograder')}
    paths = {path for path in wanted_files() if not any(path.match(pattern) for pattern in LEFT_OUT)}
    paths |= {path.relative_to(ROOT) for pattern in ('*.py', 'grading/*.py', 'mistakes/*.py', 'mistakes/*.toml')
              for path in (ROOT / 'instructor').glob(pattern)}
    content |= {f'lab/{path.as_posix()}': (ROOT / path).read_bytes() for path in paths}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(content.items()):
            entry = zipfile.ZipInfo(name, PACKED_AT)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100644 if '/' in name else 0o100755) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', type=Path, default=ROOT / 'build' / 'gradescope' / 'autograder.zip')
    output = parser.parse_args().output
    with atomic_path(output) as temporary:
        temporary.write_bytes(autograder())
    print(output)


if __name__ == '__main__':
    main()
