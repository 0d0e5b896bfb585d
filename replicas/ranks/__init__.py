"""Many ranks behind one executor: how they join, follow the plans of rank 0, and pass tensors between stages."""
