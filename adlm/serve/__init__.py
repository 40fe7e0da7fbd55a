"""Models behind HTTP: many requests share the network's calls, and a page to watch texts appear.

A request is an ordinary call of `TextModel` in a thread of its own, with a network whose passes are computed together
with those of other requests (`batcher.py`). So samplers stay what they are, and a new request joins at the next pass.
"""
