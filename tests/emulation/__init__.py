"""Checks of the native kernels on processors that are not at hand: docs/kernels.md."""
