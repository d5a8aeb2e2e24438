def record(result): return {}
