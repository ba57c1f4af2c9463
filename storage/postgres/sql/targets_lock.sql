-- Locks the nodes that are assigned units. They may send heartbeats meanwhile, but neither drain nor leave.
select from {{node}} where incarnation = any($1::text[]) order by incarnation for key share
