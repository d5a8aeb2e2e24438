"""What the core never imports: each file or folder here can be deleted, and nothing else breaks.

`mugrpo.config.base` finds them. Each module or package names what it adds in `extension`.
"""
