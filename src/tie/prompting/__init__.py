"""Between words and token ids: templates, tokenizers, detokenising, stop strings.

Shared by request processes and by `bundling`, which encodes registered prompts. Import the module that is needed: each
tokenizer's library is loaded only where a bundle wants it.
"""
