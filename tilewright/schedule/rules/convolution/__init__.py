"""Depthwise convolutions, alone and with what is around them."""
