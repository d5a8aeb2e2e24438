"""A stand-in for the package verifiers, as far as the worker uses it: no model of its rules."""
