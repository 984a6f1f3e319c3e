"""Ready programs, one a file: `radixlm run NAME`. Each of them has a docstring that says what it shows."""
