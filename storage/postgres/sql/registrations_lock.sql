-- Waits for all transactions that have locked a row of a node, and keeps others from it. A registration locks its row before it
-- reads the cluster's name, so it is either seen, or it reads the name after this transaction.
lock table {{node}} in exclusive mode
