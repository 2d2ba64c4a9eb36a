"""Structure-aware fuzzing of everything that users hand over; `scripts/fuzz.py` runs it."""
