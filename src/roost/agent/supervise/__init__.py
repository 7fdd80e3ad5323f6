"""The shell around `roost.reconcile.supervise`: processes, probes, files; decides nothing."""
