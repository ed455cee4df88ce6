"""`baton status`: a running server's pools in a terminal. `client` asks the server, `screen` makes
lines of what it answers, `command` is the whole.
"""
