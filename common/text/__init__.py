"""A model's text side: tokenizer, chat template, stop strings, and the model's own defaults.
Starts at `load.load_text_model`. Must import neither torch nor transformers, and holds no request:
what is loaded is immutable and may be used from any thread; what belongs to one sample
(`Detokenizer`, `StopStrings`, `TextStream`) must not be shared.
"""
