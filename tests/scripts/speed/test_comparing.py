"""The benchmark of comparisons times functions that exist."""

import importlib
from operator import attrgetter


def test_the_timed_functions_exist(benchmarks):
    for where in benchmarks("comparing").PARTS:
        module, _, name = where.partition(":")
        assert callable(attrgetter(name)(importlib.import_module(module))), where
