"""Tests of engines and backends that an environment of their own is made for: see the Makefile."""
