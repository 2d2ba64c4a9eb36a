"""Export of runs: per-request records, vLLM's benchmark summary, traces for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.report.export import vllm_bench
    from kvgym.report.export.chrome_trace import ChromeTrace
    from kvgym.report.export.records import iteration_frame, request_frame
    from kvgym.report.export.run_folder import run_summary, save_run
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "chrome_trace": "ChromeTrace",
            "records": "iteration_frame request_frame",
            "run_folder": "run_summary save_run",
        },
        "vllm_bench",
    )

__all__ = [
    "ChromeTrace",
    "iteration_frame",
    "request_frame",
    "run_summary",
    "save_run",
    "vllm_bench",
]
