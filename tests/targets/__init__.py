"""Tests of engines and backends that need an environment of their own; see the Makefile."""
