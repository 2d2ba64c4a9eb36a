"""Loads: scenarios at other rates, and an estimate of the rate that schedulers sustain."""
