"""Operator tables of GPUs, measured for any model, and their assembly into the batch time of one model."""
