"""Calls of a client's functions: how models write them, one family a file, and how clients read
them. Starts at `calling`. Must import neither the engine nor HTTP.
"""
