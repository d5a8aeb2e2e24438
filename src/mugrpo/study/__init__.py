"""Studies: many runs that differ in a few options, over several seeds, with intervals.

spec        a file becomes cells, each a run's config and a seed
running     cells become runs, as many at once as there are cores
outcome     a run becomes a row of the study's table
intervals   rows become means with intervals
figures, page   the table becomes pictures and a page
"""
