"""The kinds of blocks in a decoder's layers, one a file: frozen dataclasses that fulfil `config.SublayerBody`."""
