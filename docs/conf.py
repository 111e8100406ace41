"""Sphinx configuration: MyST pages, examples executed when built."""

import attsvm

project = "attsvm"
author = "The attsvm developers"
version = release = attsvm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "jupyter_execute"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
html_theme = "furo"
html_title = "attsvm"
