"""`baton check`: what this machine can do, and what would stop it from serving. `machine` and
`readings` ask the system, `facts` is what they found, `findings` judges it, `report` shows it.
"""
