"""A language model as a folder of static files: a page to chat with it, which runs it by WebAssembly in the browser."""
