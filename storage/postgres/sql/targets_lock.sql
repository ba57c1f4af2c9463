-- Nodes that are to get units: they may beat meanwhile, but neither drain nor leave.
select from {{node}} where incarnation = any($1::text[]) order by incarnation for key share
