"""Operators that a program computes with functions of its own, beside a host: `tw.offload`.

`api` has the public function, `operation` what predicates and builders are told, `target` the host with such functions
beside it, `runner` calls them.
"""
