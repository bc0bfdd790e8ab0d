"""`tw.offload`: operators that user-supplied functions compute at run time, while the host runs the rest.

`api` has the public function, `operation` what predicates and builders receive, `target` the host with such functions
beside it, `runner` calls them.
"""
