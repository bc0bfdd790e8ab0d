"""The server: OpenAI's API over an engine, and the Open Inference Protocol for any package. Imported on use only: it
needs the extra ``tilewright[llm]``."""
