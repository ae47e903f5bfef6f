"""What an answer may look like: constraints checked and turned into the text form that the runtime executes."""
