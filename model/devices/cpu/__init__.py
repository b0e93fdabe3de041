"""All that is special to the CPU: long prompts and decode steps in NumPy, on all cores."""
