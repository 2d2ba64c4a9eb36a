"""Trained agents as files: their headers, and models that play without PyTorch."""
