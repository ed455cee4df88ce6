"""What reasoning models think before they answer, told apart from the answer. Must import neither
the engine nor HTTP.
"""
