"""The course: labs and their steps, a learner's progress, checks, hints, and the linter for authors."""
