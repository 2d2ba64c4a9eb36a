"""Structure-aware fuzzing of all inputs of users; run by `scripts/fuzz.py`."""
