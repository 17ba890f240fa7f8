"""Resources that jobs request, and whether a cluster can satisfy them."""
