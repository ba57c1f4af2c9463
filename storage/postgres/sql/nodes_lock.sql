-- Whoever locks several rows locks them in the order of incarnations.
select from {{node}} where incarnation = any($1::text[]) order by incarnation for update
