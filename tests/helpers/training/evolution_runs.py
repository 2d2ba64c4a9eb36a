"""A small distribution of services, and a small configuration of evolution."""

SERVICES = {
    "families": [
        {
            "name": "small",
            "kv_capacity": 1500,
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 1.0},
                "lengths": {
                    "kind": "independent",
                    "prompt": {"kind": "lognormal", "median": {"log_uniform": [20, 80]}, "sigma": 0.5},
                    "output": {"kind": "lognormal", "median": {"log_uniform": [12, 60]}, "sigma": 0.5},
                },
                "predictions": {"choice": [{"kind": "exact"}, {"kind": "noisy", "epsilon": {"uniform": [0.1, 0.5]}}]},
                "num_requests": {"integer": [20, 40]},
            },
            "load": {"log_uniform": [0.8, 1.8]},
        }
    ]
}  # fmt: skip

TINY = {
    "name": "tiny",
    "summary": "the margin of a look-ahead",
    "algorithm": "cma_es",
    "policy": "mc_sf",
    "fixed": {"overrun": "extend"},
    "weights": {"protection": {"start": 0.5, "step": 0.2, "low": 0.0, "high": 0.9}},
    "population": 4,
    "generations": 6,
    "services": SERVICES,
    "services_per_generation": 2,
    "reference": ["fcfs:protection=0.1", "mc_benchmark:overrun=extend"],
    "held_out": {"services": 3, "interval": 2},
    "jobs": 1,
}
