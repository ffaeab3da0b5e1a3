"""The graph of a project's outputs: what each should be made from, and why it is stale.

Every command, sensor and schedule uses this graph to decide whether an output is up to date, so
that all of them agree.

- A *node* is one output of one stage, as `nanoset.yaml` and the raw folder request it: for example
  the dataset of the corpus `web`, which is made from the shards of `web`.
- A *recipe* is everything that decides the bytes of an output: settings, and the digests of its
  inputs. An output is up to date if its current version was made by its recipe, and *stale*
  otherwise.
- A *row* is the nodes that `nanoset status` shows together, such as the inventory, shards and
  dataset of a corpus.
- A *step* is the work of making one node, with its digest and the reasons for making it.

The recipes of all outputs follow from those of the inventories, which list the files of the raw
folder.

    nodes.py              the outputs of a project, and what they are made from
    order.py              the order in which they are listed
    recipes.py            what each should be made from
    current_versions.py   what exists of each
    reasons_to_build.py   compares these two for one output
    graph.py              `Graph`: all outputs together, those that fail, and those that wait
    built_inputs.py       what has changed since an output was built, without listing raw files
    step.py               `Step`
"""
