"""Hugging Face decoders: ``load`` reads them, ``attach`` makes their attention sparse."""
