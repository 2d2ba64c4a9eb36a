"""Agents as policies: the kernel that decides in any run, and its tables in one run."""
