"""Kernels: twins and fingerprints; stale machine code never runs."""

import os
import subprocess
import sys
import types

import numpy as np

from kvgym import RequestTable, System, simulate
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.cache import checksum_file
from kvgym.compiling.kernel import fingerprint, jit, uncompiled
from kvgym.compiling.sources import key_of
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel


def constant(seconds):
    """Return a model with a new kernel for each value."""

    @batch_time_kernel
    def rule(load, params):
        return seconds

    class Constant(BatchTimeModel):
        kernel = rule

        def params(self):
            return np.zeros(1)

    return Constant()


def test_twins_of_short_lived_kernels_are_not_mixed_up():
    table = RequestTable([0], [1], [3])
    for seconds in (1.0, 2.0, 3.0, 4.0):
        model = constant(seconds)  # the previous one is freed: its id may be reused
        assert model(num_decodes=1) == seconds
        run = simulate(System(kv_capacity=10, batch_time=model), table, "fcfs", compiled=False)
        assert run.requests["finish_time"].tolist() == [3 * seconds]


def test_the_fingerprint_reaches_helpers_and_constants():
    def make(factor):
        namespace = {"FACTOR": factor}
        exec("def helper(x):\n    return x * FACTOR\n", namespace)

        class Compiled:  # a stand-in for a compiled helper
            py_func = staticmethod(namespace["helper"])

        outer = {"helper": Compiled()}
        exec("def rule(x):\n    return helper(x)\n", outer)
        return outer["rule"]

    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(7.0))


def helper_module(value):
    """Return a module with a compiled helper that callers use as an attribute."""
    module = types.ModuleType("helpers")
    exec(f"from kvgym.kernels import jit\n\n@jit\ndef helper():\n    return {value}\n", vars(module))
    return module


def test_the_fingerprint_reaches_attributes_of_modules():
    def make(value):
        namespace = {"helpers": helper_module(value)}
        exec("def rule():\n    return helpers.helper()\n", namespace)
        return namespace["rule"]

    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(7.0))
    found = []
    module = helper_module(1.0)
    module.helper = jit(lambda: found)  # only plain Python can return this object
    namespace = {"helpers": module}
    exec("def rule():\n    return helpers.helper()\n", namespace)
    assert uncompiled(jit(namespace["rule"]))() is found


def test_kernels_made_of_functions_and_users_kernels_depend_on_all_sources(tmp_path):
    def made(value):
        def inner():
            return value

        inner.__module__ = "kvgym.baselines.first_come"
        return inner

    everything = f"-{key_of(())}.compiled"
    assert checksum_file(tmp_path, made(1)).name.endswith(everything)
    assert checksum_file(tmp_path, helper_module).name.endswith(everything)
    own = checksum_file(tmp_path, UnitBatchTime.kernel.function).name
    assert own.endswith(f"-{key_of((UnitBatchTime.kernel.function.__module__,))}.compiled")
    assert not own.endswith(everything)


MODEL = """
import numpy as np
from kvgym import RequestTable, System, simulate
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from helper import seconds

@batch_time_kernel
def rule(load, params):
    return seconds()

class Mine(BatchTimeModel):
    kernel = rule
    def params(self):
        return np.zeros(1)

table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[3])
print(simulate(System(kv_capacity=10, batch_time=Mine()), table, "fcfs").requests["finish_time"][0])
"""


def test_an_edit_of_a_users_helper_in_another_file_recompiles(tmp_path):
    (tmp_path / "go.py").write_text(MODEL)
    helper = "from kvgym.compiling.kernel import jit\n\n@jit\ndef seconds():\n    return {}\n"
    for value in (1.0, 7.0):
        (tmp_path / "helper.py").write_text(helper.format(value))
        done = subprocess.run(
            [sys.executable, "go.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert float(done.stdout) == 3 * value


def test_results_are_the_same_with_compilation_switched_off(tmp_path):
    code = (
        "import kvgym; t = kvgym.make_workload('lmsys', num_requests=5).sample(0);"
        "s = kvgym.System(kv_capacity=16492, batch_time=kvgym.make_batch_time({'kind': 'unit'}));"
        "print(kvgym.simulate(s, t, 'mc_sf').requests['finish_time'].tolist())"
    )
    outputs = []
    for value in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": value}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


def test_a_plain_function_is_its_own_twin():
    assert uncompiled(len) is len
