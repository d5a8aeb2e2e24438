"""Studies: many runs that differ in a few options, over several seeds, with intervals.

spec            from a file to cells, each a run's config with a seed
running         from cells to runs, as many at once as there are cores; the command itself
outcome         from a run to a row of the study's table
intervals       from rows to means with intervals
page            from the table to pictures and a page
"""
