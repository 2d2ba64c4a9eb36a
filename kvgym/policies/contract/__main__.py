"""Worker process of :func:`kvgym.policies.contract.examine`: writes results to standard output as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import warnings

from kvgym.errors import ContractError, KVGymError
from kvgym.policies.contract.checking import policy_maker
from kvgym.policies.contract.checks import CHECKS, FIRST


def main(spec: str, names: list[str]) -> None:
    """Run checks one after another, and report the beginning and the result of each."""
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # the policy's own output goes to standard error

        def report(**entry: str) -> None:
            print(json.dumps(entry), file=output, flush=True)

        try:
            make = policy_maker(spec)
            make()
        except KVGymError as error:
            report(error=str(error))
            return
        for name in names:
            report(begins=name)
            fault = ""
            try:
                CHECKS[name].run(make)
            except ContractError as error:
                fault = f"{error}\n{error.details}".rstrip()
            report(name=name, fault=fault)
            if fault and name == FIRST:
                return


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2:])
