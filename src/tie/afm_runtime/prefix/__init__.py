"""The system prompts' cache: blocks computed once, that outlive the runtime."""
