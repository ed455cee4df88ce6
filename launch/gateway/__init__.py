"""The HTTP process: requests in, workers chosen, tokens turned into text and streamed out.
Speaks to workers in messages only, and must import neither torch nor transformers.
"""
