"""The options of each objective, one file an objective.

The file `config/objectives/NAME.py` declares the options (and loads no torch);
`optimize/objectives/NAME.py` holds the mathematics. A new objective adds these two files.
"""
