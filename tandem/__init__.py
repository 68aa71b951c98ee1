"""The public face: generated stubs (tandem.v1), Client and AsyncClient, and the `tandem` command."""
