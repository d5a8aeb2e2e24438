"""Environments of the package verifiers, in an interpreter of their own (README.md)."""
