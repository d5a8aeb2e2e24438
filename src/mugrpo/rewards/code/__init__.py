"""The reward "code": a response's program, run against tests in a sandbox.

Expected results never enter a sandbox. What comes out of one is a claim, which is compared outside.
"""
