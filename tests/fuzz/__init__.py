"""Structure-aware fuzzing of all inputs of users; run by `scripts/checks/fuzz.py`."""
