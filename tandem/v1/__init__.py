"""Stubs of the public contract, generated from proto/tandem/v1; only this file is written by hand."""
