-- Every statement that locks several rows locks them in the order of incarnations, so that they
-- cannot deadlock.
select from {{node}} where incarnation = any($1::text[]) order by incarnation for update
