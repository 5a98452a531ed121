"""The grader: submissions in, points and pages out. ``python -m instructor.grade`` is its command."""
