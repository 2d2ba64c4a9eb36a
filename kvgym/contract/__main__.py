"""The process in which :func:`kvgym.contract.examine` tries a policy: results go to standard output, line by line."""

from __future__ import annotations

import json
import os
import sys
import warnings

from kvgym.contract.checking import policy_maker
from kvgym.contract.checks import CHECKS, FIRST
from kvgym.errors import ContractError, KVGymError


def main(spec: str, names: list[str]) -> None:
    """Make the checks of these names, one after another, and tell of each when it begins and ends."""
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)  # what the policy itself prints is no result

        def tell(**entry: str) -> None:
            print(json.dumps(entry), file=told, flush=True)

        try:
            make = policy_maker(spec)
            make()
        except KVGymError as error:
            tell(error=str(error))
            return
        for name in names:
            tell(begins=name)
            fault = ""
            try:
                CHECKS[name].run(make)
            except ContractError as error:
                fault = f"{error}\n{error.details}".rstrip()
            tell(name=name, fault=fault)
            if fault and name == FIRST:
                return


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2:])
