"""Comparison of kvgym's schedules with those of real engines, batch by batch; see docs/conformance.md."""
