"""How results are shown: style, tables, saved items, the page."""
