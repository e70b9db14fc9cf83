"""Jobs: everything that runs an extractor or an encoder over many images, on one machine or on a cluster.

They log to the logger "roivault", which is silent until a program, or `--log-file`, gives it a handler.
"""

import logging

logging.getLogger("roivault").addHandler(logging.NullHandler())
