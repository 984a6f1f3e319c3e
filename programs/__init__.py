"""Ready-made programs. Built in a later release."""
