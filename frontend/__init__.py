"""The language for programs of model calls. Built in a later release."""
