"""The students' checks (``tests/``), for the instructor's tools."""

import sys

from instructor.assemble import ROOT

sys.path.insert(0, str(ROOT / 'tests'))
import checking  # noqa: E402, F401
from checking import Verdict, checks, judge  # noqa: E402, F401

TODOS = tuple(checking.rubric())
