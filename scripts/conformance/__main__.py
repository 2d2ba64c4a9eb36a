"""Compare schedules of kvgym with those of an engine's own scheduler.

    python scripts/conformance vllm --version 0.33.0 --workloads 100
    python scripts/conformance vllm --prefix-cache
    python scripts/conformance vllm --offloading
    python scripts/conformance sglang --version 0.5.23
    python scripts/conformance sarathi --source FOLDER
    python scripts/conformance vidur --source FOLDER
    python scripts/conformance integration --version 0.33.0 --workloads 100
    python scripts/conformance time --version 0.33.0
    python scripts/conformance router --version 0.3.2

The wheels of vLLM (about 340 MB) and SGLang (39 MB) are downloaded once into a cache folder. Sarathi-Serve and Vidur
are read from a checkout. `integration` compares kvgym's policies inside vLLM with the simulator, and `time` measures
their decisions. `router` compares `cache_aware` with SGLang's router.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance import command, integration, integration_time, router

if __name__ == "__main__":
    mains = {"integration": integration.main, "time": integration_time.main, "router": router.main}
    if sys.argv[1:2] and sys.argv[1] in mains:
        mains[sys.argv[1]](sys.argv[2:])
    else:
        command.main()
