"""What every test relies on, however the suite was started."""

import os
import signal

# In the background of a script SIGINT is ignored, and the children that a test starts inherit that:
# none of them could be stopped by Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The settings of whoever runs the tests are no part of them; children inherit this.
os.environ["ROOST_CONFIG"] = os.devnull
