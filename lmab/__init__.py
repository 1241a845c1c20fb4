"""lmab: claims about pretrained language models, each a file that anyone can run to a verdict."""

__version__ = "0.1.0"
