"""Deployments: models served on GPUs, described by operator tables or data sheets."""
