-- Locks open commands before the counter's row, as a leave does.
select from {{command}} where id = any($1::text[]) and done_at is null order by id for update
