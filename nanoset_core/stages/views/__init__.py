"""Views: datasets of documents that rules in nanoset.yaml choose from a corpus.

The rules are applied in steps. For example, this view

    views:
      best: {of: web, where: "lang = 'en'", top: {by: quality, tokens: 10}, repeat: 2}

is chosen from a corpus of five documents as follows:

    document          0     1     2     3     4
    lang              en    de    en    en    en
    quality           3     5     1     4     5
    tokens            4     2     3     3     6

    where             ✓           ✓     ✓     ✓     the candidates are 0, 2, 3 and 4
    top                                 ✓     ✓     4 and 3 have 9 tokens; 0 would exceed 10
    repeat                              2     2     the view consists of 3, 4, 3, 4

These words are used in all modules:

- A *filter* is a step that decides about each document separately, such as `where`. The filters
  before all other steps are the *leading filters* of the view.
- *Candidates* are the documents that the leading filters keep. Every candidate has a number of
  *copies*, at first one. The other steps change it, and 0 copies mean that it is left out.
- A *budget* limits the documents or tokens. It takes candidates in the order of a hash, until the
  next one does not fit. If this happens far from the limit, the budget has a *gap*.
- A *top* is a budget that takes candidates in the order of a column, such as `quality`: the
  *ranked column*. The value at which it ends is its *cut*: here 3, the quality of document 0.

Modules, in the order of the work:

- `settings` and `stage` describe views, and say when one has to be rebuilt.
- `choosing` turns settings into steps (`rules`), and `tables` opens the tables of the documents.
- `selection` applies the steps. It uses `leading_filters` while it reads the tables, and then
  `budgets` and `top`.
- `make` writes the dataset of a view, with `writing` and `facts`, and `verify` checks it.
"""
