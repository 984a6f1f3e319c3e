"""The language for programs of model calls. What programs need is in `radixlm` itself; a backend of one's own
needs `radixlm.frontend.protocol` and the errors, which are in both places."""
